"""Rows that were rolled back, prepared, or logged as a statement, from a real binlog."""

from __future__ import annotations

import itertools
import types
import zlib
from contextlib import ExitStack, closing
from functools import partial

import pymysql
import pytest

from purgatory.cdc.capture import CaptureError
from purgatory.cdc.capture.records import RowChange
from purgatory.cdc.capture.transaction_rows import TransactionRows
from tests.databases.cdc.capture.binlog_items import Source
from tests.databases.cdc.mariadb import MariaDb, is_mysql

_numbers = itertools.count(1)


@pytest.fixture
def source(mariadb: MariaDb) -> Source:
    """A database with a table of InnoDB and one of MyISAM."""
    source = Source(mariadb, f"trx{next(_numbers)}")
    source.run("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE m (id INT KEY) ENGINE=MyISAM")
    source.begin()
    return source


TEMPORARY = ["CREATE TEMPORARY TABLE x (i INT)"]
UNSAFE = pytest.mark.parametrize(
    "unsafe",
    [[], TEMPORARY, [*TEMPORARY, "DROP TEMPORARY TABLE x"], ["INSERT INTO m VALUES (7)"]],
    ids=["nothing", "temporary", "dropped", "myisam"],
)


def require_mixed_transactions(mariadb: MariaDb, *statements: str) -> None:
    """Skip where MySQL refuses a table without transactions within one, as by default from 9.7."""
    if is_mysql() and any("INTO m" in statement for statement in statements):
        [(enforced,)] = mariadb.rows("SELECT @@enforce_gtid_consistency")
        if enforced == "ON":
            pytest.skip("the server refuses tables without transactions within one")


@UNSAFE
def test_rows_behind_a_savepoint_are_rolled_back(source: Source, unsafe: list[str]) -> None:
    require_mixed_transactions(source.mariadb, *unsafe)
    source.run(
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        "SAVEPOINT `A b`",
        "INSERT INTO t VALUES (2)",
        "SAVEPOINT s",
        "INSERT INTO t VALUES (3)",
        "SAVEPOINT s",
        "INSERT INTO t VALUES (4)",
        *unsafe,
        "ROLLBACK TO s",
        "INSERT INTO t VALUES (5)",
        "ROLLBACK TO `a B`",
        "INSERT INTO t VALUES (6)",
        "COMMIT",
    )
    rows = [row for transaction in source.transactions() for row in transaction]
    mine = [("insert", 7)] if "myisam" in str(unsafe).lower() or "INTO m" in str(unsafe) else []
    assert rows == [*mine, ("insert", 1), ("insert", 6)]


@UNSAFE
def test_transaction_that_is_rolled_back_has_no_rows(source: Source, unsafe: list[str]) -> None:
    require_mixed_transactions(source.mariadb, *unsafe)
    source.run("BEGIN", "INSERT INTO t VALUES (1)", *unsafe, "ROLLBACK", "INSERT INTO t VALUES (5)")
    rows = [row for transaction in source.transactions() for row in transaction]
    mine = [("insert", 7)] if "INTO m" in str(unsafe) else []
    assert rows == [*mine, ("insert", 5)]


def test_table_without_transactions_keeps_what_failed(source: Source) -> None:
    require_mixed_transactions(source.mariadb, "INSERT INTO m")
    with pytest.raises(pymysql.IntegrityError):
        source.run("INSERT INTO m VALUES (1), (2), (1)")
    with pytest.raises(pymysql.IntegrityError):
        source.run("BEGIN", "INSERT INTO t VALUES (1)", "INSERT INTO m VALUES (3), (3)", "COMMIT")
    stored = [number for (number,) in source.mariadb.rows(f"SELECT id FROM {source.name}.m")]
    rows = [row for transaction in source.transactions() for row in transaction]
    assert rows == [("insert", number) for number in stored]


def test_prepared_transaction_has_its_rows_when_it_ends(source: Source) -> None:
    with ExitStack() as sessions:
        ends = []
        for end, number in (("ROLLBACK", 1), ("COMMIT", 2)):
            session = sessions.enter_context(closing(source.mariadb.connect(source.name)))
            cursor = session.cursor()
            xid = f"'{number}', 'branch', 3"
            cursor.execute(f"XA START {xid}")
            cursor.execute(f"INSERT INTO t VALUES ({number})")
            cursor.execute(f"XA END {xid}")
            cursor.execute(f"XA PREPARE {xid}")
            ends.append(partial(cursor.execute, f"XA {end} {xid}"))
        source.run("INSERT INTO t VALUES (3)")
        reader = source.reader()
        assert len(list(reader.items())) > 0
        assert reader.resume_position == source.start
        for end_it in reversed(ends):
            end_it()
    assert source.transactions() == [[("insert", 3)], [("insert", 2)]]
    reader = source.reader()
    last = list(reader.items())[-1]
    assert reader.resume_position == last.position


def test_prepared_transaction_of_another_database_is_passed_over(source: Source) -> None:
    source.run(
        "CREATE DATABASE IF NOT EXISTS other",
        "CREATE TABLE IF NOT EXISTS other.o (id INT AUTO_INCREMENT PRIMARY KEY)",
        "XA START 'q'", "INSERT INTO other.o VALUES ()", "XA END 'q'", "XA PREPARE 'q'",
        "XA COMMIT 'q'",
        "XA START 'r'", "INSERT INTO t VALUES (1)", "XA END 'r'", "XA COMMIT 'r' ONE PHASE",
    )  # fmt: skip
    assert source.transactions() == [[("insert", 1)]]


def test_rows_on_disk_are_rolled_back_to_any_savepoint() -> None:
    for count in range(12):
        rows = TransactionRows(max_in_memory=3)
        for number in range(12):
            rows.set_savepoint(f"s{number}")
            rows.append(RowChange("insert", "d", "t", 0, {"id": number}, None, ()))
        assert rows.rollback_to(f"s{count}")
        assert not rows.rollback_to("s11") or count == 11
        for number in range(20, 25):
            rows.append(RowChange("insert", "d", "t", 0, {"id": number}, None, ()))
        assert [row.data["id"] for row in rows] == [*range(count), *range(20, 25)]
        rows.clear()


def test_damaged_event_stops_with_its_position(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.run("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    calls = itertools.count()
    damaged = types.SimpleNamespace(crc32=lambda data: zlib.crc32(data) ^ (next(calls) > 5))
    monkeypatch.setattr("purgatory.cdc.capture.stream.zlib", damaged)
    with pytest.raises(CaptureError, match=r"binlog\.\d+:\d+: .*wrong checksum.* new topic"):
        source.transactions()


def test_event_that_cannot_be_read_stops_with_its_position(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.run("INSERT INTO t VALUES (1)")

    def describe(*_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("purgatory.cdc.capture.decoder.RowDecoder.describe", describe)
    with pytest.raises(CaptureError, match=r"binlog\.\d+:\d+: .*KeyError: surprise.* new topic"):
        source.transactions()


STATEMENT = "SET SESSION binlog_format = 'STATEMENT'"
FUNCTION = (
    "CREATE FUNCTION f(k INT) RETURNS INT MODIFIES SQL DATA DETERMINISTIC "
    "BEGIN INSERT INTO t VALUES (k); RETURN k; END"
)


@pytest.mark.parametrize(
    "statement", ["INSERT INTO t VALUES (1)", "SELECT f(1)", "DO f(1)", "SET @x = f(1)"]
)
def test_statement_that_changes_rows_stops_the_capture(source: Source, statement: str) -> None:
    source.run("SET GLOBAL log_bin_trust_function_creators = 1", FUNCTION, STATEMENT, statement)
    with pytest.raises(CaptureError, match=r"binlog\.\d+:\d+: a statement in place of rows.*begin"):
        source.transactions()


def test_loaded_file_stops_the_capture(source: Source) -> None:
    folder = source.mariadb.rows("SELECT @@datadir")[0][0]
    source.run(f"SELECT 1 INTO OUTFILE '{folder}{source.name}.csv'", database=None)
    source.run(STATEMENT, f"LOAD DATA INFILE '{folder}{source.name}.csv' INTO TABLE t")
    with pytest.raises(CaptureError, match=r"a statement in place of rows.*LOAD DATA"):
        source.transactions()


def test_statement_of_another_database_is_passed_over(source: Source) -> None:
    other = Source(source.mariadb, f"{source.name}_other")
    other.run("CREATE TABLE o (id INT)", STATEMENT, "INSERT INTO o VALUES (1)")
    source.run("INSERT INTO t VALUES (1)")
    assert source.transactions() == [[("insert", 1)]]
    other.run(STATEMENT, f"INSERT INTO {source.name}.t VALUES (2)")
    with pytest.raises(CaptureError, match="a statement in place of rows"):
        source.transactions()


@pytest.mark.mariadb
def test_temporary_tables_of_another_format_change_nothing(source: Source) -> None:
    source.run(
        "INSERT INTO t VALUES (1)",
        STATEMENT,
        "CREATE TEMPORARY TABLE t (id INT PRIMARY KEY)",
        "TRUNCATE t",
        "ALTER TABLE t ADD z INT",
        "ALTER TABLE t RENAME u",
        "RENAME TABLE u TO t",
        "DROP TEMPORARY TABLE t",
        "ALTER TABLE t ADD w INT",
    )
    assert source.schema_changes() == ["table-alter t"]
    assert source.transactions() == [[("insert", 1)]]


def test_alter_of_a_temporary_table_made_before_stops_apply(source: Source) -> None:
    with closing(source.mariadb.connect(source.name)) as session, session.cursor() as cursor:
        cursor.execute(STATEMENT)
        cursor.execute("CREATE TEMPORARY TABLE t (id INT PRIMARY KEY)")
        source.begin()
        cursor.execute("TRUNCATE t")
        cursor.execute("ALTER TABLE t ADD z INT")
    assert source.schema_changes() == ["table-alter t the statement used a temporary table, or"]


@pytest.mark.mariadb("10.8")
def test_alter_in_two_phases_is_one_change(source: Source) -> None:
    source.run(
        "INSERT INTO t VALUES (1), (2)",
        "SET SESSION binlog_alter_two_phase = ON",
        "ALTER TABLE t ADD n INT DEFAULT 3",
    )
    with pytest.raises(pymysql.IntegrityError):
        source.run("SET SESSION binlog_alter_two_phase = ON", "ALTER TABLE t ADD UNIQUE (n)")
    source.run(
        "ALTER TABLE t ADD y INT CHARACTER SET utf8mb4".replace(" CHARACTER SET utf8mb4", "")
    )
    assert source.schema_changes() == ["table-alter t", "table-alter t"]


def test_alter_renames_into_the_database_of_its_session(source: Source) -> None:
    other = Source(source.mariadb, f"{source.name}_other")
    other.run(f"ALTER TABLE {source.name}.t RENAME u")
    assert source.schema_changes() == ["table-drop t"]


RENAMES = [
    (["RENAME TABLE IF EXISTS nope TO n2, t TO u"], ["table-alter t to u"]),
    (["RENAME TABLE IF EXISTS t TO u, nope TO n2"], ["table-alter t to u"]),
    (
        ["RENAME TABLE IF EXISTS t TO a, nope TO t, m TO b"],
        ["table-alter t to a", "table-alter m to b"],
    ),
    (
        ["RENAME TABLE IF EXISTS t TO u", "RENAME TABLE IF EXISTS t TO w"],
        ["table-alter t to u"],
    ),
    (
        ["RENAME TABLE IF EXISTS t TO a, m TO t, a TO m"],
        ["table-alter t to a", "table-alter m to t", "table-alter a to m"],
    ),
    (["CREATE TEMPORARY TABLE t (i INT)", "RENAME TABLE IF EXISTS t TO u"], []),
    (["CREATE TEMPORARY TABLE t (i INT)", "RENAME TABLE t TO u, m TO n"], ["table-alter m to n"]),
]


@pytest.mark.parametrize(("statements", "expected"), RENAMES)
@pytest.mark.mariadb
def test_renames_are_those_of_the_source(
    source: Source, statements: list[str], expected: list[str]
) -> None:
    source.run(*statements)
    found = source.schema_changes()
    assert found == expected


def version(mariadb: MariaDb) -> tuple[int, ...]:
    [(text,)] = mariadb.rows("SELECT VERSION()")
    return tuple(map(int, text.split("-")[0].split(".")[:2]))


def test_generated_columns_are_captured_or_stop_by_name(source: Source) -> None:
    source.run(
        "CREATE TABLE g (id INT PRIMARY KEY, a INT, s INT AS (a + 1) STORED, v INT AS (a + 2))",
        "INSERT INTO g (id, a) VALUES (1, 1)",
        "DELETE FROM g",
        "INSERT INTO g (id, a) VALUES (2, 1)",
    )
    deleted = [1, 1] if version(source.mariadb) >= (11, 5) else [1, 1, 2, 3]
    before = [[("insert", [1, 1, 2, 3])], [("delete", deleted)], [("insert", [2, 1, 2, 3])]]
    assert source.transactions() == before
    source.run("UPDATE g SET a = 5")
    if version(source.mariadb) >= (11, 5):
        with pytest.raises(
            CaptureError, match=r"\.g: an UPDATE without the values of s, v: .*only"
        ):
            source.transactions()
    else:
        assert source.transactions() == [*before, [("update", [2, 5, 6, 7])]]


@pytest.mark.mariadb
def test_hidden_columns_of_a_long_key_are_left_out(source: Source) -> None:
    source.run(
        "CREATE TABLE g (id INT PRIMARY KEY, l TEXT UNIQUE)",
        "INSERT INTO g VALUES (1, 'a')",
        "UPDATE g SET l = 'b'",
        "DELETE FROM g",
    )
    rows = [row for transaction in source.transactions() for row in transaction]
    assert rows == [("insert", [1, "a"]), ("update", [1, "b"]), ("delete", [1, "b"])]


@pytest.mark.mariadb("10.10")
def test_times_and_texts_of_the_newest_servers_are_captured(source: Source) -> None:
    last = "2106-02-07 06:28:15" if version(source.mariadb) >= (11, 5) else "2038-01-19 03:14:07"
    text = "CHARACTER SET utf16 COLLATE utf16_uca1400_ai_ci"
    source.run(
        f"CREATE TABLE g (t TIMESTAMP NULL, u TIMESTAMP(3) NULL, v VARCHAR(9) {text} COMMENT 'é')",
        f"INSERT INTO g VALUES ('{last}', '1970-01-01 00:00:01.125', 'é'), (0, NULL, '')",
        "CREATE DATABASE IF NOT EXISTS other CHARACTER SET utf8mb4",
    )
    assert source.transactions() == [
        [("insert", [last, "1970-01-01 00:00:01.125", "é"]), ("insert", [None, None, ""])]
    ]
    assert source.schema_changes() == ["table-create g"]
