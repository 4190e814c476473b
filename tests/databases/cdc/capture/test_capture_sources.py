"""Sources whose settings, rights or binlog would let a copy differ in silence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from purgatory.cdc.capture import CaptureError, capture_changes, parse_source_address
from purgatory.cdc.capture import source as sources
from purgatory.cdc.capture.snapshot import Snapshot
from purgatory.cdc.capture.source import (
    TableFilter,
    captured_tables,
    check_settings,
    connect,
)
from tests.databases.cdc.capture.binlog_items import Source
from tests.databases.cdc.capture.capturing import Capturing
from tests.databases.cdc.captured import read_topic
from tests.databases.cdc.mariadb import PASSWORD, MariaDb, is_mysql


@contextmanager
def global_settings(mariadb: MariaDb, **values: Any) -> Iterator[None]:
    """Set global variables, and set them back."""
    before = {name: mariadb.rows(f"SELECT @@GLOBAL.{name}")[0][0] for name in values}
    try:
        for name, value in values.items():
            mariadb.rows(f"SET GLOBAL {name} = %s", [value])
        yield
    finally:
        for name, value in before.items():
            mariadb.rows(f"SET GLOBAL {name} = %s", [value])


def test_checksums_may_be_switched(mariadb: MariaDb) -> None:
    source = Source(mariadb, "checksums")
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    names = ["t_bak", *(f"t{number}" for number in range(5))]
    with global_settings(mariadb, binlog_checksum="CRC32"):
        for number, kind in enumerate(["NONE", "CRC32", "NONE"]):
            mariadb.run(f"SET GLOBAL binlog_checksum = '{kind}'")
            source.run(f"INSERT INTO t VALUES ({number})", f"CREATE TABLE {names[number]} (i INT)")
            source.run(f"TRUNCATE {names[number]}")
        expected = [[("insert", number)] for number in range(3)]
        changes = source.schema_changes()
        assert source.transactions() == expected
        mariadb.run("SET GLOBAL binlog_checksum = 'CRC32'")
        assert source.transactions() == expected
        source.start = replace(source.start, file=mariadb.rows("SHOW BINARY LOGS")[-2][0], offset=4)
        assert source.transactions() == expected[2:]
    assert changes[-4:] == [
        "table-create t0", "table-truncate t0", "table-create t1", "table-truncate t1",
    ]  # fmt: skip


def snapshot_rows(mariadb: MariaDb, name: str, *tables: str) -> dict[str, list[Any]]:
    address = parse_source_address(f"{mariadb.url}/{name}")
    with Snapshot(address, TableFilter(name, frozenset(tables))) as snapshot:
        return {
            table.table: [list(row.data.values()) for row in snapshot.rows(table)]
            for table in snapshot.tables
        }


def test_snapshot_is_free_of_the_sources_global_settings(mariadb: MariaDb) -> None:
    source = Source(mariadb, "settings")
    source.run(
        "CREATE TABLE t (k CHAR(5) PRIMARY KEY, v CHAR(4))",
        "INSERT INTO t VALUES ('a', 'x'), ('b', ''), ('c', NULL), ('d', 'y')",
    )
    rows = [["a", "x"], ["b", ""], ["c", None], ["d", "y"]]
    settings = {
        "sql_select_limit": 2,
        "sql_mode": "PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES",
        **({"max_execution_time": 1} if is_mysql() else {"max_statement_time": 0.001}),
        "time_zone": "+05:00",
    }
    for name, value in settings.items():
        with global_settings(mariadb, **{name: value}):
            assert snapshot_rows(mariadb, "settings") == {"t": rows}, name
    with global_settings(mariadb, sql_select_limit=0):
        source.run("UPDATE t SET v = 'z' WHERE k = 'a'")
        assert source.transactions()[-1] == [("update", ["a", "z"])]


@pytest.mark.mariadb
def test_table_with_system_versioning_is_refused(capturing: Capturing) -> None:
    capturing.run("CREATE TABLE t (id INT PRIMARY KEY) WITH SYSTEM VERSIONING")
    for snapshot in (False, True):
        with pytest.raises(CaptureError, match=r"\.t has system versioning.*--only"):
            capturing.capture(snapshot=snapshot)


def test_tables_that_the_user_may_not_see_are_refused(mariadb: MariaDb) -> None:
    source = Source(mariadb, "grants_a")
    source.run("CREATE TABLE t (id INT, v INT)", "CREATE TABLE u (id INT)")
    mariadb.run(
        "DROP USER IF EXISTS poor@'%'",
        f"CREATE USER poor@'%' IDENTIFIED BY '{PASSWORD}'",
        "GRANT REPLICATION CLIENT ON *.* TO poor@'%'",
        "GRANT SELECT ON grants_a.u TO poor@'%'",
        "GRANT SELECT (id) ON grants_a.t TO poor@'%'",
    )
    address = replace(parse_source_address(mariadb.url), user="poor")

    def tables(*names: str, database: str | None = "grants_a") -> list[tuple[str, str]]:
        with connect(address) as connection:
            return captured_tables(connection, TableFilter(database, frozenset(names)))

    assert tables("u") == [("grants_a", "u")]
    with pytest.raises(CaptureError, match=r"GRANT SELECT ON `grants_a`.`t`"):
        tables("t")
    with pytest.raises(CaptureError, match=r"GRANT SELECT ON `grants_a`\.\*"):
        tables()
    mariadb.run(r"GRANT SELECT ON `grants\_%`.* TO poor@'%'")
    assert tables() == [("grants_a", "t"), ("grants_a", "u")]
    with pytest.raises(CaptureError, match=r"GRANT SELECT ON \*\.\*"):
        tables(database=None)


def test_prepared_transaction_before_the_start_is_refused(capturing: Capturing) -> None:
    capturing.run("CREATE TABLE t (id INT PRIMARY KEY)")
    with capturing.mariadb.connect(capturing.name) as session, session.cursor() as cursor:
        for statement in (
            "XA START 'p'",
            "INSERT INTO t VALUES (1)",
            "XA END 'p'",
            "XA PREPARE 'p'",
        ):
            cursor.execute(statement)
        for snapshot in (False, True):
            with pytest.raises(CaptureError, match="XA COMMIT or XA ROLLBACK 'p'"):
                capturing.capture(snapshot=snapshot)
        cursor.execute("XA ROLLBACK 'p'")
    capturing.capture(snapshot=True)


_CHILD = "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) {})"


@pytest.mark.parametrize("action", ["ON DELETE CASCADE", "ON UPDATE SET NULL"])
def test_cascade_outside_of_the_binlog_is_refused(
    capturing: Capturing, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capturing.run(
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE b (id INT PRIMARY KEY, raw BINARY(2) DEFAULT 0x00ff)",
        _CHILD.format(action),
    )
    if _logs_cascades(capturing.mariadb):
        capturing.capture(snapshot=True)
        return
    for snapshot in (False, True):
        with pytest.raises(CaptureError, match=rf"\.c: .*{action}.*--ignore-cascades"):
            capturing.capture(snapshot=snapshot)
    capture_changes(replace(capturing.config, ignore_cascades=True))
    assert capsys.readouterr().err == ""
    capturing.run("INSERT INTO p VALUES (1)")
    assert capturing.capture() == 1, "a topic that was begun before goes on"
    assert re.search(rf"may lack changes of table .*\.c: .*{action}", capsys.readouterr().err)


def test_merge_table_over_a_captured_table_is_refused(
    capturing: Capturing, capsys: pytest.CaptureFixture[str]
) -> None:
    merge = "CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MERGE UNION=(a) INSERT_METHOD=LAST"
    capturing.run("CREATE TABLE a (id INT PRIMARY KEY) ENGINE=MyISAM")
    chosen = replace(
        capturing.config, tables=TableFilter(capturing.name, frozenset({"a"})), topic="merged"
    )
    capture_changes(chosen)
    capturing.run(merge, "INSERT INTO m VALUES (1)")
    assert capturing.mariadb.rows(f"SELECT id FROM {capturing.name}.a") == [(1,)]
    capture_changes(chosen)
    stops = {
        (record.value["table"], record.value["steps"][0]["why"].split(":")[0])
        for record in read_topic(capturing.cluster.bootstrap_servers, "merged")
    }
    through = f"changes through the MERGE table {capturing.name}.m are in the binlog under that"
    assert [(table, why.startswith(through)) for table, why in stops] == [("a", True)]
    may_lack = f"merged may lack changes of table {capturing.name}.a: {through}"
    assert may_lack in capsys.readouterr().err
    with pytest.raises(CaptureError, match=r"\.a: changes through the MERGE table"):
        capture_changes(replace(chosen, topic="new"))
    with pytest.raises(CaptureError, match=r"\.m: the binlog doesn't say which tables"):
        capturing.capture()
    capturing.run("DROP TABLE m")
    capturing.capture()


def test_restart_reads_keys_while_tables_are_renamed_and_dropped(
    capturing: Capturing, monkeypatch: pytest.MonkeyPatch
) -> None:
    capturing.run("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE kept (id INT PRIMARY KEY)")
    capturing.capture()
    listed = sources._existing_tables
    statements = ["RENAME TABLE a TO b", "DROP TABLE b"]

    def list_and_change(*given: Any) -> list[tuple[str, str]]:
        names = listed(*given)
        if statements:
            capturing.run(statements.pop(0))
        return names

    monkeypatch.setattr(sources, "_existing_tables", list_and_change)
    capturing.capture()
    assert statements == []


def test_later_cascade_is_a_stop_or_in_the_binlog(mariadb: MariaDb) -> None:
    source = Source(mariadb, "cascades")
    source.run(
        "CREATE TABLE p (id INT PRIMARY KEY)",
        _CHILD.format("ON DELETE RESTRICT"),
        "INSERT INTO p VALUES (1)",
        "INSERT INTO c VALUES (1, 1)",
        "ALTER TABLE c DROP FOREIGN KEY c_ibfk_1, ADD FOREIGN KEY (p) REFERENCES p (id)"
        " ON DELETE CASCADE ON UPDATE CASCADE",
        "DELETE FROM p",
    )
    stop = "" if _logs_cascades(mariadb) else " its foreign key's ON DELETE CASCADE chan"
    assert source.schema_changes()[-3:] == [
        "table-create p", "table-create c", f"table-alter c{stop}"
    ]  # fmt: skip
    deleted = [kind for changes in source.transactions() for kind, _ in changes].count("delete")
    assert deleted == (2 if _logs_cascades(mariadb) else 1)


def _logs_cascades(mariadb: MariaDb) -> bool:
    return bool(mariadb.rows("SHOW VARIABLES LIKE 'innodb_native_foreign_keys'"))


@pytest.mark.mariadb
def test_replica_without_the_changes_it_replicates_is_refused(mariadb: MariaDb) -> None:
    address = parse_source_address(mariadb.url)
    mariadb.run("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1")
    try:
        with (
            connect(replace(address, user="root", password="")) as connection,
            pytest.raises(CaptureError, match="log_slave_updates is OFF"),
        ):
            check_settings(connection)
    finally:
        mariadb.run("RESET SLAVE ALL")
    with connect(address) as connection:
        check_settings(connection)
        mariadb.run("SET GLOBAL gtid_slave_pos = '7-7-7'")
        try:
            with pytest.raises(CaptureError, match="log_slave_updates is OFF"):
                check_settings(connection)
        finally:
            mariadb.run("SET GLOBAL gtid_slave_pos = ''")


@pytest.fixture(scope="module")
def own() -> Iterator[MariaDb]:
    """A server that these tests start anew."""
    with MariaDb() as server:
        yield server


def test_source_that_was_made_anew_is_refused(own: MariaDb, capturing: Capturing) -> None:
    again = replace_source(capturing, own)
    again.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    again.capture(snapshot=True)
    again.run("INSERT INTO t VALUES (2)")
    assert again.capture() == 1
    is_newest = own.rows("SELECT VERSION() LIKE '9.%%'")[0][0]
    own.run("RESET BINARY LOGS AND GTIDS" if is_newest else "RESET MASTER", "DO SLEEP(1)")
    while again.mariadb.binlog_end().offset < 3000:
        again.run("INSERT INTO t SELECT MAX(id) + 1 FROM t")
    with pytest.raises(CaptureError, match=r"another file than the one.*begin a new topic"):
        again.capture()


def test_table_in_memory_is_empty_after_a_restart(own: MariaDb, capturing: Capturing) -> None:
    again = replace_source(capturing, own)
    again.run("CREATE TABLE `a``b` (id INT PRIMARY KEY) ENGINE=MEMORY", "CREATE TABLE k (id INT)")
    again.capture()
    again.run("INSERT INTO `a``b` VALUES (1)")
    own.kill()
    own.start()
    assert own.rows(f"SELECT * FROM {again.name}.`a``b`") == []
    again.run("INSERT INTO `a``b` VALUES (2)")
    again.capture()
    of_one = [record for record in again.records() if record.partition == 0]
    assert [record.value["table"] for record in of_one if record.key is None] == ["a`b"]
    assert {record.value["type"] for record in again.records()} == {"insert", "table-truncate"}
    again.run("SET binlog_format = 'STATEMENT'", f"DELETE FROM `{again.name}`.`a``b`")
    with pytest.raises(CaptureError, match="a statement in place of rows"):
        again.capture()


def replace_source(capturing: Capturing, server: MariaDb) -> Capturing:
    return Capturing(server, capturing.cluster, capturing.name)


def test_binlog_that_leaves_databases_out_is_refused(own: MariaDb) -> None:
    own.kill()
    own._settings = ("--binlog-ignore-db=other",)
    own.start()
    with (
        connect(parse_source_address(own.url)) as connection,
        pytest.raises(CaptureError, match="binlog_ignore_db is other"),
    ):
        check_settings(connection)
