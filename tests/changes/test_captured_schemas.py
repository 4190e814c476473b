"""Each kind of statement that changes tables: by a real MariaDB, captured, and applied."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from purgatory.changes import Record, StoppedOnBadError, Target
from purgatory.changes.apply.exactly_once import Writer
from purgatory.changes.apply.row_by_row import apply_rows
from purgatory.changes.apply.transactions import apply_transactions
from purgatory.cluster import ClusterConfig, ThreadedCluster
from tests.changes.capture.capturing import Capturing
from tests.changes.captured import read_records
from tests.changes.mariadb import MariaDb
from tests.changes.same_rows import difference

# The fixtures capture a log for each statement, and what they take counts as the first test's.
pytestmark = pytest.mark.timeout(300)

ROWS = "INSERT INTO {t} VALUES (1, 10, 'a', NULL), (2, 20, 'b', 0.5), (3, -30, 'c', 1)"
CREATE = "CREATE TABLE {t} (id INT PRIMARY KEY, n INT, s VARCHAR(10), d DECIMAL(8,2))"
APPLIED = [
    "TRUNCATE {t}",
    "TRUNCATE TABLE {t}; INSERT INTO {t} VALUES (1, 11, 'x', 1), (9, 1, 'y', 2)",
    "DROP TABLE {t}",
    "DROP TABLE {t}; CREATE TABLE {t} (id INT PRIMARY KEY, n VARCHAR(9)); "
    "INSERT INTO {t} VALUES (1, 'now')",
    "CREATE OR REPLACE TABLE {t} (k BIGINT UNSIGNED PRIMARY KEY, b BLOB); "
    "INSERT INTO {t} VALUES (18446744073709551615, x'00ff')",
    "CREATE OR REPLACE TABLE {t} (PRIMARY KEY (id)) SELECT id, s FROM {t}0",
    "CREATE TABLE {t}b LIKE {t}; INSERT INTO {t}b SELECT * FROM {t}",
    "CREATE TABLE {t}c (PRIMARY KEY (id)) AS SELECT id, n + 1 AS n, s FROM {t}",
    "RENAME TABLE {t} TO {t}r; INSERT INTO {t}r VALUES (4, 4, 'd', 4)",
    "CREATE TABLE {t}n LIKE {t}; RENAME TABLE {t} TO {t}o, {t}n TO {t}; "
    "INSERT INTO {t} SELECT id, n, s, d FROM {t}o WHERE id < 3",
    "ALTER TABLE {t} RENAME {t}r; CREATE TABLE {t} (id INT PRIMARY KEY); "
    "INSERT INTO {t} VALUES (5)",
    "ALTER TABLE {t} RENAME COLUMN n TO m; UPDATE {t} SET m = m + 1 WHERE id = 1",
    "ALTER TABLE {t} RENAME COLUMN n TO N",
    "ALTER TABLE {t} RENAME COLUMN id TO no; INSERT INTO {t} VALUES (7, 7, 'g', 7)",
    "ALTER TABLE {t} CHANGE n m BIGINT COMMENT 'n'; INSERT INTO {t} VALUES (7, 1 << 40, 'g', 7)",
    "ALTER TABLE {t} MODIFY s VARCHAR(60), MODIFY d DECIMAL(12,2); "
    "INSERT INTO {t} VALUES (7, 7, REPEAT('x', 50), 1234567890.12)",
    "ALTER TABLE {t} DROP COLUMN s, ADD COLUMN s INT DEFAULT 5; UPDATE {t} SET s = 6 WHERE id = 2",
    "ALTER TABLE {t} DROP n, DROP COLUMN IF EXISTS nothing",
    "ALTER TABLE {t} ADD (a INT NOT NULL, b VARCHAR(9) NOT NULL, c DATETIME(3) DEFAULT "
    "'2024-05-06 07:08:09.5', e ENUM('x', 'y') NOT NULL, f SET('x', 'y') DEFAULT 'y,x', "
    "g BINARY(3) NOT NULL, h BIT(5) DEFAULT b'10110', i DOUBLE DEFAULT 1.5, j DATE NOT NULL, "
    "k TIME(2) NOT NULL, l CHAR(4) DEFAULT 'q  ', m FLOAT DEFAULT 1.1, o BOOL DEFAULT TRUE, "
    "p DECIMAL(7,3) UNSIGNED DEFAULT '7', q TIMESTAMP NULL, r VARBINARY(4) DEFAULT x'00ff', "
    "u YEAR DEFAULT 2031, v TEXT DEFAULT 'it''s\\\\n', w BIGINT UNSIGNED DEFAULT "
    "18446744073709551615, x INT DEFAULT -5, y JSON NOT NULL, z MEDIUMBLOB NOT NULL)",
    "ALTER TABLE {t} ADD COLUMN IF NOT EXISTS n INT DEFAULT 9, ADD z INT DEFAULT 8 FIRST",
    "ALTER TABLE {t} ADD INDEX (n), ADD UNIQUE u (s), ENGINE=InnoDB, COMMENT='DROP COLUMN n', "
    "ADD CONSTRAINT c CHECK (n < 1000), ALTER n SET DEFAULT 4; INSERT INTO {t}(id) VALUES (8)",
    "CREATE INDEX i ON {t} (n); DROP INDEX i ON {t}; ANALYZE TABLE {t}; OPTIMIZE TABLE {t}",
    "CREATE VIEW {t}v AS SELECT * FROM {t}; CREATE TRIGGER {t}g BEFORE INSERT ON {t} FOR EACH ROW "
    "SET NEW.n = 77; INSERT INTO {t}(id) VALUES (8); DROP VIEW {t}v; DROP TRIGGER {t}g",
    "CREATE SEQUENCE {t}q; ALTER SEQUENCE {t}q RESTART 5; DROP SEQUENCE {t}q",
    "CREATE TEMPORARY TABLE {t}t (id INT PRIMARY KEY); INSERT INTO {t}t VALUES (1); "
    "CREATE TABLE {t}l LIKE {t}t; DROP TEMPORARY TABLE {t}t",
    "SET STATEMENT max_statement_time=60 FOR ALTER TABLE {t} RENAME COLUMN n TO m",
    "ALTER TABLE {t} PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (2), PARTITION q VALUES "
    "LESS THAN MAXVALUE); ALTER TABLE {t} REORGANIZE PARTITION q INTO (PARTITION r VALUES LESS "
    "THAN (9), PARTITION s VALUES LESS THAN MAXVALUE); ALTER TABLE {t} TRUNCATE PARTITION ALL; "
    "INSERT INTO {t} VALUES (1, 1, 'p', 1)",
    "ALTER TABLE {t} CONVERT TO CHARACTER SET utf8mb4; ALTER DATABASE CHARACTER SET utf8mb4",
    "DELETE FROM {t}; ALTER TABLE {t} MODIFY n VARCHAR(9); "
    "INSERT INTO {t} VALUES (1, 'text', 'a', 1)",
    "BEGIN; INSERT INTO {t} VALUES (8, 8, 'h', 8); ALTER TABLE {t} ADD x INT; "
    "INSERT INTO {t} VALUES (9, 9, 'i', 9, 9); COMMIT",
]
STOPPED = {
    "ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (id, s)": "another primary key",
    "ALTER TABLE {t} MODIFY n VARCHAR(9)": r"{t}\.n was int",
    "ALTER TABLE {t} MODIFY s VARCHAR(1)": r"{t}\.s was varchar\(10\), and is varchar\(1\)",
    "ALTER TABLE {t} MODIFY d DECIMAL(8,2) NOT NULL": "has nulls",
    "ALTER TABLE {t} ADD u TIMESTAMP DEFAULT CURRENT_TIMESTAMP": "times of the source",
    "ALTER TABLE {t} ADD u CHAR(36) DEFAULT UUID()": "an expression of the source",
    "ALTER TABLE {t} ADD u INT AS (n + 1) PERSISTENT": "computed by the source",
    "ALTER TABLE {t} ADD u INT AUTO_INCREMENT UNIQUE": "numbered by the source",
    "ALTER TABLE {t} ADD SYSTEM VERSIONING": "system versioning",
    "ALTER TABLE {t} CONVERT TO CHARACTER SET latin1": "may lose characters",
    "ALTER TABLE {t} PARTITION BY HASH (id) PARTITIONS 2; ALTER TABLE {t} TRUNCATE PARTITION p0": (
        "TRUNCATE PARTITION takes rows away"
    ),
}


@pytest.fixture(scope="module")
def source() -> Iterator[MariaDb]:
    with MariaDb() as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(ClusterConfig(brokers=1)) as running:
        yield running


def statements(text: str, table: str) -> list[str]:
    return [part for part in text.replace("{t}", table).split("; ") if part]


@pytest.fixture(scope="module")
def applied(source: MariaDb, cluster: ThreadedCluster) -> list[Record]:
    """The log of all that can be applied, each with a table of its own."""
    capturing = Capturing(source, cluster, "applied")
    capturing.capture()
    for number, text in enumerate(APPLIED):
        table = f"t{number}_"
        copied = [one.replace("{t}", "{t}0") for one in (CREATE, ROWS)] if "{t}0" in text else []
        run = [CREATE, ROWS, *copied, *statements(text, table)]
        capturing.run(*(one.replace("{t}", table) for one in run))
    capturing.capture()
    return read_records(cluster.bootstrap_servers, "applied")


def apply(target: Target, records: list[Record], way: str) -> None:
    writer = Writer(target)
    if way == "transaction":
        for first in range(0, len(records), 40):
            apply_transactions(writer, records[first : first + 40])
        return
    for partition in sorted({record.partition for record in records}, reverse=True):
        found = [record for record in records if record.partition == partition]
        apply_rows(writer, found[0].topic, partition, found)


@pytest.mark.parametrize("way", ["row", "transaction"])
def test_each_kind_of_statement_is_applied_at_its_place(
    target: Target, applied: list[Record], source: MariaDb, way: str
) -> None:
    apply(target, applied, way)
    assert target.select_own("purgatory_waiting") == []
    assert [row[4] for row in target.select_own("purgatory_quarantine")] == []
    assert difference(source, "applied", target) == {}


@pytest.fixture(scope="module")
def stopped(source: MariaDb, cluster: ThreadedCluster) -> dict[str, list[Record]]:
    """A log for each statement that stops."""
    logs = {}
    for number, text in enumerate(STOPPED):
        name = f"stopped{number}"
        capturing = Capturing(source, cluster, name)
        capturing.capture()
        run = [CREATE, ROWS, text, "UPDATE {t} SET s = 'late'"]
        capturing.run(*(part for one in run for part in statements(one, "t")))
        capturing.capture()
        logs[text] = read_records(cluster.bootstrap_servers, name)
    return logs


@pytest.mark.parametrize("text", STOPPED)
def test_what_the_log_does_not_tell_stops_with_one_clear_line(
    target: Target, stopped: dict[str, list[Record]], text: str
) -> None:
    with pytest.raises(StoppedOnBadError, match=STOPPED[text].replace("{t}", "t")) as raised:
        apply(target, stopped[text], "row")
    assert "\n" not in str(raised.value)
    rows = target._run("SELECT s FROM t ORDER BY id").fetchall()  # type: ignore[attr-defined]
    assert [row[0] for row in rows] == ["a", "b", "c"]
