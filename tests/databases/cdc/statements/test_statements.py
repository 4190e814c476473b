"""Any statements at a real source: the copies are equal, or stop and name the statement."""

from __future__ import annotations

import datetime
import os
import random
import sqlite3
from collections.abc import Iterator
from decimal import Decimal

import pytest

from tests.databases.cdc.mariadb import is_mysql
from tests.databases.cdc.statements.cells import CopiedTable, SourceTable, differences, read_sqlite
from tests.databases.cdc.statements.column_kinds import KINDS
from tests.databases.cdc.statements.run import Proof, prove
from tests.databases.cdc.statements.sessions import CODECS, Session, any_session
from tests.databases.cdc.statements.statement_generator import Program, Step
from tests.databases.cdc.statements.statement_run import (
    Servers,
    Task,
    run_programs,
    running_servers,
)

# The fixture starts three servers, and their start counts as the first test's time.
pytestmark = pytest.mark.timeout(900)

_SEED = "PURGATORY_STATEMENTS_SEED"
_ORDINARY = Session()


def seed_of_the_day() -> int:
    """Today's date in UTC, so that each day tries others; the environment may name another."""
    given = os.environ.get(_SEED)
    return int(given or datetime.datetime.now(datetime.UTC).strftime("%Y%m%d"))


def check(proof: Proof, *, equal: float) -> None:
    """Check that no cell differs, and that enough cells were compared.

    Args:
        equal: the least share of programs that end equal; of many it is about 0.7.
    """
    print(proof.summary())
    assert not proof.failures, "\n".join([f"{_SEED}={proof.seed}", *proof.failures])
    # Half of the statements' forms are MariaDB's own.
    assert proof.refused <= (0.65 if is_mysql() else 0.35), proof.summary()
    assert proof.share("equal") >= equal, proof.summary()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with running_servers() as running:
        yield running


def test_random_statements_leave_equal_copies_or_a_stop(servers: Servers) -> None:
    seed = seed_of_the_day()
    print(f"{_SEED}={seed}")
    # Of so few programs more than a half may stop by chance.
    check(prove(servers, seed, 25), equal=0.3)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_many_random_statements_leave_equal_copies_or_a_stop() -> None:
    seed = seed_of_the_day()
    with running_servers() as servers:
        check(prove(servers, seed, 150), equal=0.5)
    with running_servers("--lower-case-table-names=1") as servers:
        check(prove(servers, seed + 1, 25), equal=0.5)


def program(*statements: str, session: Session = _ORDINARY) -> Task:
    """A program that one session runs."""
    steps = [Step(0, [statement]) for statement in statements]
    return Task(statements[-1][:60], replayed=Program("replayed", [session], steps))


ONCE_DIFFERENT = [
    program(
        "CREATE TABLE t (id INT, a TEXT UNIQUE, PRIMARY KEY (ID))", "INSERT INTO t VALUES (1, 'x')"
    ),
    program(
        *("CREATE TABLE t (id INT PRIMARY KEY, Price INT)", "INSERT INTO t VALUES (1, 5)"),
        "ALTER TABLE t ADD COLUMN IF NOT EXISTS price FLOAT, DROP PRICE, ADD IF NOT EXISTS b INT",
    ),
    program(
        *("CREATE TABLE t (id INT PRIMARY KEY, A INT, b INT)", "INSERT INTO t VALUES (1, 5, 6)"),
        "ALTER TABLE t RENAME COLUMN a TO B, RENAME COLUMN B TO c, ADD d VARCHAR(9) DEFAULT +5",
        "ALTER TABLE t ADD e INET4 DEFAULT '1.2.3.4', ADD f UUID, ADD g INET6 NOT NULL",
    ),
    program(
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, e ENUM('a') NOT NULL DEFAULT 2)",
    ),
    program(
        *("CREATE TABLE t (id INT PRIMARY KEY, `é` INT)", "INSERT INTO t VALUES (1, 2)"),
        "CREATE TABLE u (PRIMARY KEY (id)) SELECT * FROM t",
        "CREATE TABLE `ñ` (id INT PRIMARY KEY, `ü` VARCHAR(9) DEFAULT 'é')",
        *("ALTER TABLE `ñ` RENAME COLUMN `Ü` TO `é`", "DROP TABLE `ñ`, t"),
        session=Session("latin1"),
    ),
    program("CREATE TABLE `チーム` (id INT PRIMARY KEY, `表` INT)", session=Session("sjis")),
    program("CREATE TABLE `乣a` (id INT PRIMARY KEY)", session=Session("gbk")),
    program("CREATE TABLE `2a` (id INT PRIMARY KEY, `b` INT)", session=Session("swe7")),
    program(
        *("CREATE TABLE t (id INT NOT NULL, a INT)", "INSERT INTO t VALUES (1, 2), (2, 3)"),
        *("ALTER TABLE t ADD PRIMARY KEY (ID)", "INSERT INTO t VALUES (3, 4)"),
    ),
    program(
        *("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TEMPORARY TABLE t (id INT)"),
        *("ALTER TABLE t RENAME TO u", "DROP TABLE u", "INSERT INTO t VALUES (1)"),
    ),
    program(
        "CREATE TABLE t (id INT PRIMARY KEY) ENGINE=MyISAM",
        "CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MERGE UNION=(t) INSERT_METHOD=LAST",
        "INSERT INTO m VALUES (1)",
    ),
    program(
        "CREATE TABLE t (id INT, a DATE, b DATE, PERIOD FOR p(a, b),"
        " PRIMARY KEY (id, p WITHOUT OVERLAPS))",
        "INSERT INTO t VALUES (1, '2024-01-01', '2025-01-01')",
        "DELETE FROM t FOR PORTION OF p FROM '2024-05-06' TO '2024-07-08'",
    ),
]
"""Programs that some version copied wrongly, each as short as it could be."""


def test_formerly_different_statements_are_equal_or_stop(servers: Servers) -> None:
    found = run_programs(servers, ONCE_DIFFERENT, live=False)
    failures = [f"{outcome.failure}\n{shown}" for outcome, shown in found if outcome.failure]
    assert not failures, "\n".join(failures)
    equal = [outcome for outcome, _ in found if outcome.verdict == "equal"]
    assert len(equal) >= len(found) // 2


def test_keyless_table_is_quarantined_beside_its_namesake(
    servers: Servers,
) -> None:
    names = ("CREATE TABLE `levelY` (k INT PRIMARY KEY)", "CREATE TABLE LEVELy (id INT NOT NULL)")
    ((outcome, shown),) = run_programs(servers, [program(*names)], live=False)
    assert (outcome.failure, outcome.verdict) == ("", "quarantined"), shown


def test_comparison_finds_missing_cells_of_a_copy(servers: Servers) -> None:
    # Behind the back of the log: no capture can be right then, and the comparison must see it.
    create = "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9))"
    hidden = ["SET sql_log_bin = 0", "INSERT INTO t VALUES (1, 'x')", "SET sql_log_bin = 1"]
    renamed = ["SET sql_log_bin = 0", "ALTER TABLE t RENAME COLUMN a TO b", "SET sql_log_bin = 1"]
    tasks = [program(create), program(create, *hidden), program(create, *renamed)]
    found = [outcome for outcome, _ in run_programs(servers, tasks, live=True)]
    assert [outcome.verdict for outcome in found] == ["equal", "FAILED", "FAILED"]
    assert "0 rows" in found[1].failure
    assert "not ['b']" in found[2].failure


@pytest.mark.parametrize(
    ("kind", "source", "copy"),
    [
        ("int", "5", 6),
        ("decimal", "1.5", Decimal("1.50001")),
        ("varchar", "a", "a "),
        ("varchar", "5", 5),
        ("double", "0.1", 0.10000000000000002),
        ("float", "cdcc8c3f", 1.2),
        ("datetime", "2024-05-06 07:08:09.5", "2024-05-06 07:08:09"),
        ("blob", "bytes 00ff", b"\x00"),
        ("blob", "bytes 00ff", None),
        ("text", None, ""),
    ],
)
def test_comparison_reports_a_different_cell(kind: str, source: str | None, copy: object) -> None:
    there = SourceTable({"id": "int", "a": kind}, [("1", source)])
    assert differences({"t": there}, {"t": CopiedTable(["id", "a"], [(1, copy)])})


def test_comparison_accepts_equal_cells_in_other_forms() -> None:
    kinds = {"id": "int", "a": "decimal", "b": "datetime", "c": "blob", "d": "bit", "e": "varchar"}
    row = ("1", "1.5", "2024-05-06 07:08:09.5", "bytes 00ff", "5", None)
    there = SourceTable(kinds, [row])
    forms = [(1, "1.500", "2024-05-06 07:08:09.500000", "AP8=", 5)]
    assert differences({"t": there}, {"t": CopiedTable(list(kinds)[:-1], forms)}) == {}
    assert differences({}, {"t": CopiedTable(["id"], [])})
    assert differences({"t": there}, {})


def test_every_character_set_of_a_client_has_a_codec_and_letters() -> None:
    chance = random.Random(1)
    for charset in CODECS:
        assert Session(charset).encoded("SELECT 1") == b"SELECT 1"
    assert {any_session(chance).charset for _ in range(2_000)} == set(CODECS)
    assert sum(len(kind.literals) for kind in KINDS.values()) > 300


def test_the_comparison_reads_sqlite_without_the_product() -> None:
    with sqlite3.connect(":memory:") as connection:
        connection.execute('CREATE TABLE "a""b" (id INTEGER, x BLOB)')
        connection.execute("CREATE TABLE purgatory_offsets (a)")
        connection.execute("""INSERT INTO "a""b" VALUES (1, x'00ff')""")
        assert read_sqlite(connection) == {'a"b': CopiedTable(["id", "x"], [(1, b"\x00\xff")])}
