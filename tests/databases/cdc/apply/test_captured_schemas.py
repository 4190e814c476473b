"""Each kind of statement that changes tables: by a real MariaDB, captured, and applied."""

from __future__ import annotations

from collections.abc import Iterator

import pymysql
import pytest

from purgatory.cdc import QuarantineStopError, Record, Target
from purgatory.cdc.apply.exactly_once import Writer
from purgatory.cdc.apply.transactions import apply_rows, apply_transactions
from purgatory.cluster import ClusterConfig, ThreadedCluster
from tests.databases.cdc.capture.capturing import Capturing
from tests.databases.cdc.captured import read_records
from tests.databases.cdc.mariadb import MariaDb
from tests.databases.cdc.same_rows import difference

# The fixtures capture a log for each statement, and their time counts as the first test's.
pytestmark = pytest.mark.timeout(900)

ROWS = "INSERT INTO {t} VALUES (1, 10, 'a', NULL), (2, 20, 'b', 0.5), (3, -30, 'c', 1)"
CREATE = "CREATE TABLE {t} (id INT PRIMARY KEY, n INT, s VARCHAR(10), d DECIMAL(8,2))"
APPLIED = [
    "CREATE TEMPORARY TABLE {t} (id INT); RENAME TABLE {t} TO {t}t; DROP TEMPORARY TABLE {t}t",
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
    "ALTER TABLE {t} MODIFY n VARCHAR(9); INSERT INTO {t} VALUES (7, 'seven', 'g', 7)",
    "UPDATE {t} SET d = 1 WHERE d IS NULL; ALTER TABLE {t} MODIFY d DECIMAL(8,0) NOT NULL",
    "ALTER TABLE {t} ADD IF NOT EXISTS d DECIMAL(4,0); ALTER TABLE {t} MODIFY D DECIMAL(6,0)",
    "ALTER TABLE {t} CHANGE n s DOUBLE, CHANGE s n VARCHAR(20), MODIFY d VARCHAR(9) FIRST",
    "CREATE TABLE {t}j (id INT PRIMARY KEY, j JSON) CHARSET latin1; "
    "INSERT INTO {t}j VALUES (1, '\"ü\"'); ALTER TABLE {t}j MODIFY j LONGTEXT",
    # A key's column, whose values may be others.
    "ALTER TABLE {t} MODIFY id BIGINT NOT NULL; INSERT INTO {t} VALUES (1 << 40, 7, 'g', 7)",
    "ALTER TABLE {t} CHANGE id no VARCHAR(9) NOT NULL; INSERT INTO {t} VALUES ('7', 7, 'g', 7)",
    "UPDATE {t} SET id = 0 WHERE id = 1; ALTER TABLE {t} MODIFY id INT AUTO_INCREMENT",
    # Types and names that change again before the rows are read back.
    "ALTER TABLE {t} MODIFY n VARCHAR(9); INSERT INTO {t} VALUES (7, 'seven', 'g', 7); "
    "DELETE FROM {t} WHERE id = 7; ALTER TABLE {t} CHANGE n m BIGINT, DROP s, ADD n DATE; "
    "INSERT INTO {t} VALUES (8, 8, 8, '2024-05-06'); ALTER TABLE {t} RENAME COLUMN n TO s, "
    "MODIFY id BIGINT; UPDATE {t} SET m = 1 << 40, s = '2024-05-07' WHERE id = 8",
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
    # Names in another case.
    "ALTER TABLE {t} DROP COLUMN S, RENAME COLUMN N TO m, MODIFY D DECIMAL(9,2); "
    "UPDATE {t} SET m = 99 WHERE id = 1",
    "ALTER TABLE {t} CHANGE S s2 VARCHAR(30), CHANGE N N BIGINT; "
    "INSERT INTO {t} VALUES (7, 1 << 40, 'new', 7)",
    "CREATE TABLE {t}k (id INT NOT NULL, É INT, e INT, PRIMARY KEY (ID)); "
    "INSERT INTO {t}k VALUES (1, 2, 3); ALTER TABLE {t}k CHANGE é Ê BIGINT, DROP E; "
    "UPDATE {t}k SET ê = 5",
    # The values that the server stored in old rows.
    "ALTER TABLE {t} ADD a YEAR NOT NULL DEFAULT 99, ADD b FLOAT(7,2) DEFAULT 1.239, "
    "ADD c BIT(8) DEFAULT '5', ADD e VARCHAR(9) DEFAULT +5, ADD f DECIMAL(6,2) DEFAULT 1e-1, "
    "ADD g INT DEFAULT 0x41, ADD h INT DEFAULT (5), ADD i DATE DEFAULT '2024-1-5', "
    "ADD j ENUM('x', 'y') DEFAULT 'Y', ADD k TIME DEFAULT '1 2:3', ADD l UUID DEFAULT UUID(), "
    "ADD m INET6 DEFAULT '::1', ADD o TIMESTAMP NULL DEFAULT NULL, "
    "ADD p TIMESTAMP(3) NOT NULL DEFAULT '2024-1-5 7:8:9.5', ADD q POINT DEFAULT POINT(1, 2), "
    "ADD r CHAR(4) CHARACTER SET latin1 DEFAULT 'é', ADD u DATETIME DEFAULT {d '2024-01-05'}",
    "ALTER TABLE {t} ADD u TIMESTAMP DEFAULT CURRENT_TIMESTAMP; UPDATE {t} SET n = 0 WHERE id = 1; "
    "ALTER TABLE {t} MODIFY u DATETIME NOT NULL, ADD v INT AUTO_INCREMENT UNIQUE; "
    "DELETE FROM {t} WHERE id = 2; INSERT INTO {t} (id) VALUES (9)",
    "ALTER TABLE {t} ADD u INT AS (n + 1) PERSISTENT; "
    "ALTER TABLE {t} MODIFY u INT AS (n + 2) STORED",
    "ALTER TABLE {t} ADD x INT NOT NULL DEFAULT 7; ALTER TABLE {t} MODIFY x VARCHAR(9) NOT NULL; "
    "ALTER TABLE {t} RENAME COLUMN x TO y; ALTER TABLE {t} RENAME TO {t}z; "
    "UPDATE {t}z SET y = 'new' WHERE id = 3",
    "ALTER TABLE {t} ADD x INT DEFAULT 7; ALTER TABLE {t} DROP x, ADD y INT DEFAULT 8; "
    "DROP TABLE {t}",
    # Another character set, which columns get that name none.
    "INSERT INTO {t} VALUES (8, 8, 'ж€', 8); ALTER TABLE {t} ROW_FORMAT=DYNAMIC CHARSET=latin1; "
    "ALTER TABLE {t} MODIFY s VARCHAR(10); INSERT INTO {t} VALUES (9, 9, 'ü', 9)",
    "INSERT INTO {t} VALUES (8, 8, 'ж', 8); ALTER TABLE {t} MODIFY s VARCHAR(20), "
    "COLLATE latin1_bin, ADD COLUMN IF NOT EXISTS u VARCHAR(9) DEFAULT 'ü'",
    "INSERT INTO {t} VALUES (8, 8, 'ж', 8); ALTER TABLE {t} CONVERT TO CHARACTER SET latin1",
    "INSERT INTO {t} VALUES (8, 8, 'ж', 8); ALTER DATABASE CHARACTER SET latin1; "
    "ALTER TABLE {t} CONVERT TO CHARACTER SET DEFAULT; CREATE TABLE {t}d (id INT PRIMARY KEY, "
    "s TEXT); ALTER TABLE {t}d MODIFY s TEXT; ALTER DATABASE CHARACTER SET utf8mb4; "
    "INSERT INTO {t}d VALUES (1, 'ü')",
    "CREATE TABLE {t}k (s VARCHAR(9) PRIMARY KEY); INSERT INTO {t}k VALUES ('ж'), ('ü'); "
    "ALTER TABLE {t}k DEFAULT CHARSET latin1; ALTER TABLE {t}k MODIFY s VARCHAR(9)",
    "CREATE TABLE {t}w (id INT PRIMARY KEY, s TEXT) CHARSET latin1; "
    "INSERT INTO {t}w VALUES (1, REPEAT('ü', 60000)); "
    "ALTER TABLE {t}w CONVERT TO CHARACTER SET utf8mb4; DELETE FROM {t}w WHERE id = 2",
    # Converted texts of columns that then get another type or name, before the rows are read back.
    "ALTER TABLE {t} CONVERT TO CHARACTER SET latin1; INSERT INTO {t} VALUES (9, 9, 'text', 9); "
    "DELETE FROM {t} WHERE id = 9; UPDATE {t} SET s = '5'; ALTER TABLE {t} MODIFY s INT",
    "ALTER TABLE {t} CHARSET latin1; INSERT INTO {t} VALUES (9, 9, 'text', 9); "
    "ALTER TABLE {t} RENAME COLUMN s TO s2, RENAME COLUMN n TO s; "
    "INSERT INTO {t} VALUES (8, 8, 'r', 8)",
    "ALTER TABLE {t} CONVERT TO CHARACTER SET latin1, RENAME COLUMN s TO s2, "
    "RENAME COLUMN n TO s; INSERT INTO {t} VALUES (8, 8, 'r', 8); ALTER TABLE {t} DROP s2",
    "CREATE TABLE {t}k (s VARCHAR(9) PRIMARY KEY, n INT); INSERT INTO {t}k VALUES ('ж', 1), "
    "('ü', 2); SET sql_mode=''; ALTER TABLE {t}k CONVERT TO CHARACTER SET latin1; "
    "ALTER TABLE {t}k MODIFY n VARCHAR(9); INSERT INTO {t}k VALUES ('x', 'y')",
    "ALTER TABLE {t} CONVERT TO CHARACTER SET binary; INSERT INTO {t} VALUES (8, 8, x'00ff', 8)",
    # Conditions that do not hold.
    "ALTER TABLE {t} ADD COLUMN IF NOT EXISTS D DECIMAL(4,0) DEFAULT 3, DROP d",
    "ALTER TABLE {t} ADD IF NOT EXISTS N TEXT, MODIFY IF EXISTS nothing INT, "
    "CHANGE IF EXISTS nothing s TEXT, RENAME COLUMN IF EXISTS nothing TO n2, "
    "DROP IF EXISTS nothing; ALTER TABLE {t} MODIFY n BIGINT, MODIFY s VARCHAR(20)",
    "RENAME TABLE IF EXISTS nothing TO {t}o; CREATE TABLE IF NOT EXISTS {t} (a INT PRIMARY KEY); "
    "DROP TABLE IF EXISTS nothing",
    "ALTER IGNORE TABLE {t} ADD x INT, ADD KEY (x), ENGINE=InnoDB",
    # Columns that MariaDB stores in its own way.
    "CREATE TABLE {t}c (id INT PRIMARY KEY, a TEXT COMPRESSED, b VARCHAR(300) COMPRESSED "
    "CHARACTER SET latin1, c BLOB COMPRESSED, e ENUM('é', 'b') CHARACTER SET latin1, "
    "u TEXT UNIQUE); INSERT INTO {t}c VALUES (1, REPEAT('é', 900), REPEAT('é', 200), "
    "REPEAT(x'00ff', 400), 'é', 'u'), (2, 'é', '', '', 'b', NULL), (3, '', '', '', 'é', 'v'); "
    "SET STATEMENT column_compression_zlib_wrap = ON FOR "
    "INSERT INTO {t}c VALUES (4, REPEAT('é', 900), REPEAT('é', 200), REPEAT('c', 400), 'é', 'w')",
]
KEYLESS = [
    "CREATE TABLE {t}k (id INT NOT NULL, n INT DEFAULT 5, s VARCHAR(9)); "
    "INSERT INTO {t}k VALUES (1, 1, 'a'), (2, 2, 'b'); "
    "ALTER TABLE {t}k ADD PRIMARY KEY (ID), ADD KEY (n); INSERT INTO {t}k VALUES (4, 4, 'd'); "
    "ALTER TABLE {t}k MODIFY id BIGINT NOT NULL AUTO_INCREMENT, AUTO_INCREMENT = 5; "
    "INSERT INTO {t}k (s) VALUES ('e'); DELETE FROM {t}k WHERE id = 1",
    "CREATE TABLE {t}k (id INT); INSERT INTO {t}k VALUES (1); "
    "ALTER TABLE {t}k ADD k DECIMAL(7,2) PRIMARY KEY FIRST; RENAME TABLE {t}k TO {t}l; "
    "INSERT INTO {t}l VALUES (1.5, 2)",
    "CREATE TABLE {t}k (id INT); ALTER TABLE {t}k MODIFY id INT PRIMARY KEY; "
    "CREATE TABLE {t}l LIKE {t}k; INSERT INTO {t}l VALUES (8); INSERT INTO {t}k VALUES (9); "
    "TRUNCATE {t}k; INSERT INTO {t}k VALUES (10)",
    "CREATE TABLE {t}k (id INT); INSERT INTO {t}k VALUES (1); DROP TABLE {t}k; "
    "CREATE TABLE {t}k (id INT PRIMARY KEY); INSERT INTO {t}k VALUES (2)",
]
"""Tables that have no key at first."""
STOPPED = {
    "ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (id, s)": "another primary key",
    "ALTER IGNORE TABLE {t} ADD UNIQUE (n)": "IGNORE may drop rows",
    "ALTER TABLE {t} ADD SYSTEM VERSIONING": "system versioning",
    "ALTER TABLE {t} PARTITION BY HASH (id) PARTITIONS 2; ALTER TABLE {t} TRUNCATE PARTITION p0": (
        "TRUNCATE PARTITION takes rows away"
    ),
}


SESSIONS = [
    ("latin1", "", "ALTER TABLE {t} ADD né VARCHAR(9) DEFAULT 'é'; UPDATE {t} SET né = 'ü', n = 1"),
    (
        "latin1",
        "ANSI_QUOTES",
        """CREATE TABLE "{t}é" ("ID" INT PRIMARY KEY, "a" ENUM('é', 'b')); """
        """INSERT INTO "{t}é" VALUES (1, 'é')""",
    ),
    ("cp1251", "", "/* Привет */ ALTER TABLE {t} ADD ж VARCHAR(9) DEFAULT 'Привет' COMMENT 'ж'"),
    (
        "gbk",
        "",
        "ALTER TABLE {t} ADD x VARCHAR(9) DEFAULT '誠', ADD 誠 INT DEFAULT 7 COMMENT '許功'",
    ),
    ("sjis", "", "ALTER TABLE {t} ADD x VARCHAR(9) DEFAULT 'ソ', ADD 表 INT DEFAULT 7"),
    ("big5", "", "ALTER TABLE {t} ADD x INT COMMENT '功', ADD y INT DEFAULT 4 COMMENT '許'"),
    (
        "ujis",
        "NO_BACKSLASH_ESCAPES",
        "ALTER TABLE {t} ADD 表 VARCHAR(9) DEFAULT 'ソ\\', DROP d",
    ),
    (
        "utf8mb4",
        "ORACLE",
        """ALTER TABLE "{t}" ADD (a NUMBER DEFAULT 1.5, b DATE DEFAULT '2024-01-05'); """
        "CREATE TABLE {t}o (id NUMBER(9) PRIMARY KEY, v VARCHAR2(9), d DATE, r RAW(4), c CLOB); "
        "INSERT INTO {t}o VALUES (1, 'v', '2024-01-05 07:08:09', 'r', 'c')",
    ),
    (
        "utf8mb4",
        "MAXDB,REAL_AS_FLOAT",
        "ALTER TABLE {t} ADD a TIMESTAMP, ADD b REAL DEFAULT 1.1",
    ),
]
"""Statements of sessions with another character set or sql_mode."""


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
    for number, (charset, mode, text) in enumerate(SESSIONS):
        with source.connect("applied", charset) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = %s", (mode,))
            for part in [CREATE, ROWS, *statements(text, "{t}")]:
                cursor.execute(part.replace("{t}", f"s{number}_"))
    with pytest.raises(pymysql.Error, match="Invalid default"):
        capturing.run(CREATE.replace("{t}", "f"), "CREATE OR REPLACE TABLE f (a INT DEFAULT 'a')")
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
    assert target.select_own("purgatory_pending") == []
    assert [row[4] for row in target.select_own("purgatory_quarantine")] == []
    assert difference(source, "applied", target) == {}


@pytest.fixture(scope="module")
def keyless(source: MariaDb, cluster: ThreadedCluster) -> list[Record]:
    """The log of tables that get their key later."""
    capturing = Capturing(source, cluster, "keyless")
    capturing.capture()
    for number, text in enumerate(KEYLESS):
        capturing.run(*statements(text, f"t{number}_"), "CREATE TABLE IF NOT EXISTS other (a INT)")
    capturing.capture()
    return read_records(cluster.bootstrap_servers, "keyless")


@pytest.mark.parametrize("way", ["row", "transaction"])
def test_table_without_a_key_is_quarantined_until_it_has_one(
    target: Target, keyless: list[Record], source: MariaDb, way: str
) -> None:
    # As of a run that ended in the middle.
    apply(target, keyless[: len(keyless) // 2], way)
    apply(target, keyless, way)
    assert target.select_own("purgatory_pending") == []
    assert {row[3] for row in target.select_own("purgatory_quarantine")} == {"missing key"}
    assert difference(source, "keyless", target) == {}


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
def test_statement_beyond_the_log_stops_with_one_line(
    target: Target, stopped: dict[str, list[Record]], text: str
) -> None:
    with pytest.raises(QuarantineStopError, match=STOPPED[text].replace("{t}", "t")) as raised:
        apply(target, stopped[text], "row")
    assert "\n" not in str(raised.value)
    rows = target._run("SELECT s FROM t ORDER BY id").fetchall()
    assert [row[0] for row in rows] == ["a", "b", "c"]
