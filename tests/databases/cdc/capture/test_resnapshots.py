"""Rows that are read back from the source, while others change it and captures are cut short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from purgatory.cdc import ApplyOptions, QuarantineStopError, Target, open_target
from purgatory.cdc.apply.exactly_once import Writer
from purgatory.cdc.apply.transactions import apply_transactions
from purgatory.cdc.capture import snapshot
from purgatory.cdc.capture.connector import capture_changes
from purgatory.cdc.capture.publisher import Publisher
from purgatory.cdc.capture.records import CapturedRecord
from purgatory.cdc.capture.source import TableFilter
from purgatory.cluster import ThreadedCluster
from tests.databases.cdc.capture.capturing import Capturing
from tests.databases.cdc.captured import read_records
from tests.databases.cdc.mariadb import MariaDb
from tests.databases.cdc.same_rows import difference

CREATE = "CREATE TABLE t (id INT PRIMARY KEY, n INT)"
ROWS = "INSERT INTO t VALUES (1, 10), (2, 20), (3, 30)"
ADD = "ALTER TABLE t ADD y YEAR NOT NULL DEFAULT 99"
CHANGE = "ALTER TABLE t MODIFY id BIGINT UNSIGNED, CHANGE n m VARCHAR(9)"


@pytest.fixture
def target() -> Iterator[Target]:
    opened = open_target("sqlite:///:memory:")
    opened.prepare()
    yield opened
    opened.close()


def check_equal(capturing: Capturing, target: Target) -> None:
    apply_transactions(
        Writer(target), read_records(capturing.cluster.bootstrap_servers, capturing.name)
    )
    assert target.select_own("purgatory_pending") == []
    assert difference(capturing.mariadb, capturing.name, target) == {}


@pytest.mark.parametrize("sent", [0, 1, 3])
@pytest.mark.parametrize("statement", [ADD, CHANGE])
def test_interrupted_capture_sends_the_rows_again(
    capturing: Capturing,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
    sent: int,
) -> None:
    capturing.capture()
    capturing.run(CREATE, ROWS, statement)
    whole: Callable[[snapshot.Resnapshots, int], Iterator[CapturedRecord]]
    whole = snapshot.Resnapshots.records

    def some(self: snapshot.Resnapshots, first_xoffset: int) -> Iterator[CapturedRecord]:
        for number, record in enumerate(whole(self, first_xoffset)):
            if number == sent:
                raise KeyboardInterrupt
            yield record

    monkeypatch.setattr(snapshot.Resnapshots, "records", some)
    with pytest.raises(KeyboardInterrupt):
        capturing.capture()
    monkeypatch.undo()
    meanwhile = "ALTER TABLE t CHANGE id no INT, ADD z INT DEFAULT 5"
    capturing.run("DELETE FROM t WHERE id = 2", meanwhile, "UPDATE t SET z = 11 WHERE no = 1")
    capturing.capture()
    check_equal(capturing, target)
    assert target.select_own("purgatory_quarantine") == []


@pytest.mark.parametrize("sent", [1, 2, 5])
def test_snapshot_interrupted_within_a_change_is_applied(
    capturing: Capturing, target: Target, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    capturing.run(CREATE, ROWS)
    whole = Publisher._send_to
    count = 0

    def some(self: Publisher, partition: int, record: CapturedRecord) -> None:
        nonlocal count
        if count == sent:
            self._sender.flush()
            raise KeyboardInterrupt
        count += 1
        whole(self, partition, record)

    monkeypatch.setattr(Publisher, "_send_to", some)
    with pytest.raises(KeyboardInterrupt):
        capturing.capture(snapshot=True)
    monkeypatch.undo()
    capturing.run("ALTER TABLE t ADD x INT", "UPDATE t SET x = 5 WHERE id = 2")
    capturing.capture()
    check_equal(capturing, target)
    assert target.select_own("purgatory_quarantine") == []


@pytest.mark.parametrize(
    "meanwhile",
    [
        ["ALTER TABLE t CHANGE y z SMALLINT NOT NULL", "INSERT INTO t VALUES (4, 4, 5)"],
        [CHANGE, "INSERT INTO t VALUES (1 << 63, 'four', 2004)", "ALTER TABLE t DROP y"],
        ["ALTER TABLE t DROP y, ADD y INT NOT NULL DEFAULT 3", "DELETE FROM t WHERE id = 1"],
        ["RENAME TABLE t TO u", "CREATE TABLE t (id INT PRIMARY KEY, y INT DEFAULT 8)"],
        ["DROP TABLE t"],
        ["TRUNCATE t", "INSERT INTO t VALUES (9, 9, 1999)"],
    ],
)
def test_changes_between_statement_and_snapshot_are_in_the_copy(
    capturing: Capturing, target: Target, monkeypatch: pytest.MonkeyPatch, meanwhile: list[str]
) -> None:
    capturing.capture()
    capturing.run(CREATE, ROWS, ADD, "UPDATE t SET y = 2001 WHERE id = 3")
    read = snapshot.Resnapshots._read
    todo = list(meanwhile)

    def late(self: snapshot.Resnapshots) -> snapshot._Rows:
        capturing.run(*todo)
        todo.clear()
        return read(self)

    monkeypatch.setattr(snapshot.Resnapshots, "_read", late)
    capturing.capture()
    assert not todo
    check_equal(capturing, target)
    assert target.select_own("purgatory_quarantine") == []


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("ADD v INT DEFAULT 5", r"t\.v is defined anew"),
        ("CHANGE z v BIGINT", r"t\.v is defined anew"),
        ("CONVERT TO CHARACTER SET latin1", "t is converted"),
    ],
)
def test_only_a_table_without_snapshots_stops_at_its_statement(
    capturing: Capturing, target: Target, statement: str, reason: str
) -> None:
    capturing.capture()
    capturing.run(f"{CREATE} ENGINE=MyISAM", ADD, ROWS.replace(")", ", 0)"))
    capturing.run("ALTER TABLE t ADD z INT", f"ALTER TABLE t {statement}")
    capturing.capture()
    with pytest.raises(QuarantineStopError, match=f"{reason}, and .* engine MyISAM"):
        check_equal(capturing, target)


@pytest.mark.parametrize("has_no_snapshots", [True, False])
@pytest.mark.mariadb
def test_stopping_statement_keeps_the_rows_due_before_it(
    capturing: Capturing, target: Target, monkeypatch: pytest.MonkeyPatch, has_no_snapshots: bool
) -> None:
    capturing.capture()
    capturing.run(CREATE, ROWS, ADD)
    read = snapshot.Resnapshots._read
    engine = "Aria" if has_no_snapshots else "InnoDB"
    todo = [f"ALTER TABLE t ENGINE={engine}", "ALTER IGNORE TABLE t ADD UNIQUE (n)"]

    def late(self: snapshot.Resnapshots) -> snapshot._Rows:
        capturing.run(*todo)
        todo.clear()
        return read(self)

    monkeypatch.setattr(snapshot.Resnapshots, "_read", late)
    capturing.capture()
    with pytest.raises(QuarantineStopError) as stopped:
        check_equal(capturing, target)
    assert ("engine Aria" if has_no_snapshots else "IGNORE may drop rows") in str(stopped.value)
    if not has_no_snapshots:
        position = str(stopped.value).split("--skip-ddl ")[1].rstrip(")")
        options = ApplyOptions(skip_ddl=frozenset({position}))
        records = read_records(capturing.cluster.bootstrap_servers, capturing.name)
        apply_transactions(Writer(target, options), records)
        assert difference(capturing.mariadb, capturing.name, target) == {}


@pytest.mark.mariadb
def test_only_a_table_that_contradicts_the_binlog_stops(
    capturing: Capturing, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_MAX_TRIES", 2)
    capturing.capture()
    unknown_statement = "SET STATEMENT sql_mode = '' FOR ALTER TABLE t RENAME v"
    capturing.run(CREATE, ROWS, ADD, unknown_statement, CREATE.replace("t", "u", 1))
    capturing.run(ADD.replace("t ADD", "u ADD"), "INSERT INTO u VALUES (1, 2, 3)")
    capturing.capture()
    records = read_records(capturing.cluster.bootstrap_servers, capturing.name)
    passed: set[str] = set()
    for why in ("it sets how it is read itself", r"\.t: its rows can't be read back"):
        with pytest.raises(QuarantineStopError, match=why) as stopped:
            apply_transactions(Writer(target, ApplyOptions(skip_ddl=frozenset(passed))), records)
        passed.add(str(stopped.value).split("--skip-ddl ")[1].rstrip(")"))
    apply_transactions(Writer(target, ApplyOptions(skip_ddl=frozenset(passed))), records)
    assert target.select_own("purgatory_pending") == []
    assert set(difference(capturing.mariadb, capturing.name, target)) == {"t", "v"}


def test_table_without_primary_key_is_read_by_its_row_key(
    capturing: Capturing, target: Target
) -> None:
    capturing.capture()
    capturing.run(
        "CREATE TABLE t (a INT NOT NULL, b INT NOT NULL, n INT UNIQUE, UNIQUE x (a),"
        " UNIQUE b (b, a))",
        "INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)",
        "ALTER TABLE t ADD x INT NOT NULL DEFAULT 5",
    )
    capturing.capture()
    check_equal(capturing, target)
    table = target.table("t")
    assert table is not None
    assert table.primary_key == ("a",)
    # Only the statement is reported.
    assert len(target.select_own("purgatory_quarantine")) == 1
    for index, reason in ("x", "unknown table"), ("b", "missing key"):
        capturing.run(f"DROP INDEX {index} ON t", "INSERT INTO t VALUES (1, 3, NULL, 3)")
        capturing.capture()
        apply_transactions(
            Writer(target), read_records(capturing.cluster.bootstrap_servers, capturing.name)
        )
        found = [row[3] for row in target.select_own("purgatory_quarantine")]
        assert reason in found[1:]


@pytest.mark.mariadb
def test_columns_of_excluded_tables_are_ignored(capturing: Capturing) -> None:
    capturing.run("CREATE TABLE a (id INT PRIMARY KEY, v TEXT COMPRESSED)", CREATE)
    config = replace(
        capturing.config, tables=TableFilter(capturing.name, frozenset({"t"})), snapshot=True
    )
    capture_changes(config)
    capturing.run("INSERT INTO a VALUES (1, REPEAT('x', 300))", ROWS)
    assert capture_changes(config) > 0


def test_names_of_tables_are_compared_as_the_source_does(
    cluster: ThreadedCluster, target: Target
) -> None:
    with MariaDb("--lower-case-table-names=1") as mariadb:
        capturing = Capturing(mariadb, cluster, "lowercase")
        config = replace(capturing.config, tables=TableFilter("LowerCase"))
        capture_changes(config)
        capturing.run(
            "CREATE TABLE Orders (Id INT PRIMARY KEY, n INT)",
            "INSERT INTO ORDERS VALUES (1, 1)",
            "ALTER TABLE LOWERCASE.oRDERS ADD x INT DEFAULT 5",
            "CREATE TABLE Copy LIKE ORDERS",
            "RENAME TABLE orders TO Sold, COPY TO orderS",
            "INSERT INTO Orders VALUES (7, 7, 7)",
            "DROP TABLE IF EXISTS NOTHING",
        )
        capture_changes(config)
        check_equal(capturing, target)
        assert target.select_own("purgatory_quarantine") == []
