"""The parsed effect of statements equals that at a real MariaDB."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pymysql
import pytest

from purgatory.cdc.capture.position import Position
from purgatory.cdc.capture.source import current_position
from purgatory.cdc.ddl.statements import (
    Role,
    SchemaChange,
    schema_changes,
    statement_role,
)
from purgatory.cdc.ddl.tokens import SqlMode
from tests.databases.cdc.mariadb import MariaDb, is_mysql

COLUMNS = r"""
    TINYINT | INT UNSIGNED | BIGINT UNSIGNED NOT NULL | INT(10) UNSIGNED ZEROFILL | INT SIGNED
    INT1 | INT2 | INT3 | MIDDLEINT | INT4 | INT8 | INTEGER | BOOL | BOOLEAN DEFAULT TRUE | SERIAL
    DECIMAL(12,3) UNSIGNED | NUMERIC(10) ZEROFILL | FIXED(5,2) | DEC | FLOAT | FLOAT(7,4)
    FLOAT(30) | FLOAT(10) | FLOAT4 | FLOAT8 | FLOAT UNSIGNED | DOUBLE PRECISION | DOUBLE(10,2)
    REAL
    BIT(7) DEFAULT b'1010' | BIT | BIT(8) DEFAULT 0b101 | YEAR | YEAR(4) | DATE | DATETIME | TIME(3)
    DATETIME(6) DEFAULT '2024-05-06 07:08:09.5' | TIMESTAMP | TIMESTAMP(3) NULL
    TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
    DATETIME DEFAULT now() ON UPDATE now() | DATE DEFAULT DATE'2024-01-01' | DATE DEFAULT CURDATE()
    TIME DEFAULT TIME'10:00:00' | TIMESTAMP DEFAULT 0 | CHAR(9) NOT NULL | CHAR | CHAR VARYING(9)
    CHARACTER VARYING(9) | NATIONAL CHAR VARYING(3) | NATIONAL VARCHAR(3) | NCHAR(3) | NVARCHAR(3)
    VARCHARACTER(10) | CHAR(4) BYTE | CHAR(4) BINARY | TINYTEXT | MEDIUMTEXT | LONGTEXT | LONG
    VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin DEFAULT 'x' INVISIBLE | LONG VARCHAR
    VARCHAR(9) CHARSET utf8 | VARCHAR(9) ASCII | VARCHAR(9) UNICODE | VARCHAR(9) COLLATE latin2_bin
    VARCHAR(9) COLLATE utf8mb4_bin NOT NULL | VARCHAR(9) CHARACTER SET binary | TEXT COLLATE binary
    VARCHAR(9) COLLATE uca1400_ai_ci | TEXT CHARACTER SET ucs2 | LONG VARBINARY | BINARY(5) | BINARY
    VARBINARY(20) | BLOB | LONGBLOB | ENUM('new','paid','it''s') NOT NULL
    SET('a','b') DEFAULT 'b,a'
    ENUM('a\'b','c\\d','"','x)','y,z') | SET('a','b') CHARACTER SET latin1 | JSON CHECK (a <> '')
    POINT | POINT REF_SYSTEM_ID=101 | GEOMETRY NOT NULL | MULTIPOLYGON | UUID | INET6 | INET4
    INT GENERATED ALWAYS AS (id + 1) STORED | INT AS (id + 1) PERSISTENT | INT AS (id+1) VIRTUAL
    INT GENERATED ALWAYS AS (id) VIRTUAL INVISIBLE | INT DEFAULT (1 + 2) | INT DEFAULT NEXTVAL(s)
    INT DEFAULT NEXT VALUE FOR s | CHAR(36) DEFAULT UUID() | INT DEFAULT -7 | INT DEFAULT +7
    DECIMAL(5,2) DEFAULT '1.5' | DOUBLE DEFAULT 1e3 | DOUBLE DEFAULT -1.5E-3 | INT KEY
    INT UNIQUE KEY
    VARCHAR(40) DEFAULT 'it''s' | VARCHAR(40) DEFAULT 'a\nb\Zc' | VARCHAR(40) DEFAULT "x""y"
    VARCHAR(9) DEFAULT _utf8mb4'é' | VARCHAR(9) DEFAULT N'x' | VARBINARY(9) DEFAULT x'00ff'
    VARBINARY(9) DEFAULT 0x00ff | BLOB DEFAULT X'41' | INT AUTO_INCREMENT UNIQUE
    INT NULL DEFAULT NULL
    INT COMMENT '' CHECK (a > 0)
    INT PRIMARY KEY COMMENT 'x' | INT COMMENT 'DROP COLUMN a, b' | INT INVISIBLE DEFAULT 5
    TEXT COMPRESSED | TEXT COMPRESSED=zlib | VARCHAR(10) COMPRESSED | INT CHECK (a > 0) | INT FIRST
    INT REFERENCES x (y) ON DELETE SET NULL | INT AFTER id | INT DEFAULT 8 FIRST
"""
STATEMENTS = r"""
ALTER TABLE t ADD INDEX n (id), COMMENT 'DROP COLUMN id'
ALTER TABLE t RENAME COLUMN a TO e, ADD KEY (n)
ALTER TABLE t RENAME COLUMN IF EXISTS a TO e
ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a
ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO e
ALTER TABLE t RENAME COLUMN a TO any
ALTER TABLE t RENAME u
ALTER TABLE t RENAME AS u
ALTER TABLE t RENAME = u
ALTER TABLE t DROP a, RENAME TO u
ALTER TABLE t CHANGE `a` e BIGINT UNSIGNED COMMENT 'RENAME TO x' AFTER c, MODIFY d ENUM('a,b')
ALTER TABLE t CHANGE COLUMN IF EXISTS a e BIGINT
ALTER TABLE t CHANGE a `primary` INT
ALTER TABLE t MODIFY IF EXISTS a BIGINT
ALTER TABLE t MODIFY a VARCHAR(9) CHARACTER SET utf8mb4 NOT NULL DEFAULT 'x' AFTER b
ALTER TABLE t DROP a, DROP `b`, DROP COLUMN c
ALTER TABLE t DROP COLUMN a RESTRICT
ALTER TABLE t DROP IF EXISTS a
ALTER TABLE t DROP COLUMN a, ADD COLUMN a INT DEFAULT 5
ALTER TABLE t ADD COLUMN IF NOT EXISTS n INT DEFAULT 9, ADD z INT DEFAULT 8 FIRST
ALTER TABLE t ADD COLUMN (e INT, f INT)
ALTER TABLE t ADD (e INT, KEY k (e))
ALTER TABLE t ADD e INT /*!50000 , ADD f INT */
ALTER TABLE t ADD e INT /*M!100100 , DROP COLUMN a */
ALTER TABLE t ADD e INT /*!999999 , DROP COLUMN a */
ALTER TABLE t /*!50000 DROP COLUMN a, */ DROP COLUMN b
/*!50000 ALTER TABLE t DROP COLUMN a */
CREATE TABLE u (id INT PRIMARY KEY /*!, a INT */)
CREATE TABLE u (id INT) /*!50100 PARTITION BY HASH (id) */
CREATE TABLE u (id INT, a INT COMMENT '/*! x */')
ALTER TABLE t ADD e INT, ALGORITHM=COPY
ALTER TABLE t ENGINE=InnoDB, ADD e INT
ALTER TABLE t ADD CHECK (a > 0), ADD e INT
ALTER TABLE t ADD CONSTRAINT IF NOT EXISTS k CHECK (a > 0), ADD CONSTRAINT vector UNIQUE (a), DROP b
ALTER TABLE t ADD vector INT DEFAULT 7, ADD COLUMN e INT
ALTER TABLE t ADD (e INT, vector VARCHAR(9), KEY vector (e), CONSTRAINT vector2 UNIQUE (vector))
ALTER TABLE t ADD UNIQUE u (a), ADD COLUMN e INT
ALTER TABLE t ALTER a SET DEFAULT 5, DROP b
ALTER TABLE t ADD KEY k (a), DROP COLUMN b
ALTER TABLE t DROP INDEX IF EXISTS k, DROP COLUMN a
ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4, ADD e INT
ALTER TABLE t ADD e INT PARTITION BY HASH (id) PARTITIONS 4
ALTER TABLE t DROP COLUMN a, ENGINE=InnoDB PARTITION BY KEY () PARTITIONS 2
ALTER TABLE IF EXISTS t ADD e INT
ALTER TABLE t WAIT 5 ADD e INT
ALTER TABLE t NOWAIT ADD e INT
ALTER ONLINE TABLE t RENAME COLUMN a TO e
ALTER IGNORE TABLE t ADD e INT
ALTER TABLE t DROP COLUMN b, ORDER BY a
ALTER TABLE t ADD e INT COMMENT '', ORDER BY n, d DESC, a
ALTER TABLE t DEFAULT CHARACTER SET latin1 COLLATE latin1_bin, DROP b
ALTER TABLE t ADD COLUMN e INT COMMENT 'a'', DROP COLUMN b'
ALTER TABLE t ADD e VARCHAR(99) DEFAULT '\', DROP b, ADD x INT COMMENT \''
ALTER TABLE t ADD e INT CHECK (e IN (1, 2)), DROP a
ALTER TABLE t ADD e INT AS (a + 1) VIRTUAL, DROP b
ALTER TABLE t ADD e INT REFERENCES other (id) ON DELETE CASCADE ON UPDATE SET NULL, DROP a
ALTER TABLE t ADD COLUMN `a,b` INT, ADD `c)d` INT, ADD `--e` INT, ADD `/*f*/` INT
ALTER TABLE t ADD COLUMN period INT, ADD columns INT, ADD partition_key INT, ADD ttl INT DEFAULT 5
ALTER TABLE t ADD e INT -- c
ALTER TABLE t ADD e INT # c
RENAME TABLE t TO u
RENAME TABLE t TO tmp, other TO t, tmp TO other
RENAME TABLE IF EXISTS t TO u
DROP TABLE IF EXISTS `t`, x.other
DROP TABLES t, other
DROP TABLE t WAIT 5
CREATE TABLE u LIKE t
CREATE TABLE u (LIKE t)
CREATE TABLE u (id INT, a VARCHAR(20), PRIMARY KEY USING BTREE (id, a(10) DESC))
CREATE TABLE u (id INT, INDEX (id), CONSTRAINT `p` UNIQUE KEY (id), CONSTRAINT CHECK (id > 0))
CREATE TABLE u (vector DECIMAL(9,2), a INT, KEY vector (a), CONSTRAINT vector PRIMARY KEY (vector))
CREATE TABLE u (a INT COMMENT 'PRIMARY KEY', b INT, CHECK (a > 1), `check` INT, `constraint` INT)
CREATE TABLE u (id INT) COMMENT 'select' ENGINE=InnoDB
CREATE TABLE u (a VARCHAR(9), FULLTEXT (a), FULLTEXT INDEX (a), INDEX USING BTREE (a))
CREATE TABLE u (id INT, a DATE, b DATE, PERIOD FOR p (a, b))
CREATE TABLE u (id INT) ENGINE=InnoDB DEFAULT CHARSET=latin1 COMMENT='x' ROW_FORMAT=DYNAMIC
CREATE TABLE u (id INT) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN MAXVALUE)
CREATE TABLE `u``b` (`x y` INT, `sel``ect` INT, `--e` INT, `/*! f*/` INT, g ENUM('x)','y,z'))
CREATE TABLE 2024_t (2a INT, a$b INT, `é` INT, ü INT)
CREATE TABLE u (`key` INT, `index` INT, status INT, date DATE, time TIME, text TEXT, year YEAR)
CREATE TABLE u (comment TEXT, type INT, position INT, value INT, action INT, level INT)
CREATE TABLE u (any INT, first INT, after INT, enum INT, period INT, system INT, invisible INT)
CREATE OR REPLACE TABLE t (id INT)
CREATE TABLE IF NOT EXISTS t (id INT, q INT)
CREATE TEMPORARY TABLE v (id INT)
SET STATEMENT max_statement_time=60 FOR ALTER TABLE t RENAME COLUMN n TO m
"""
OLD = (
    "CREATE TABLE t (id INT KEY, a INT, b INT, c VARCHAR(20), n INT, s VARCHAR(10), d DECIMAL(8,2))"
)


def definitions() -> list[str]:
    return [part.strip() for line in COLUMNS.strip().splitlines() for part in line.split(" | ")]


def statements() -> list[str]:
    return STATEMENTS.strip().splitlines()


def _shape(type_name: str, words: str, charset: str | None, nullable: bool) -> tuple[Any, ...]:
    name = {"json": "longtext"}.get(type_name, type_name)
    return name, "unsigned" in words, {"utf8": "utf8mb3"}.get(charset or "", charset), nullable


def made_column(cursor: pymysql.cursors.Cursor, definition: str) -> tuple[Any, ...]:
    """The server's column after one is added by its definition."""
    cursor.execute("DROP TABLE IF EXISTS t")
    cursor.execute("CREATE TABLE t (id INT)")
    cursor.execute(f"ALTER TABLE t ADD a {definition}")
    cursor.execute(
        "SELECT data_type, column_type, character_set_name, is_nullable FROM"
        " information_schema.columns WHERE table_schema = DATABASE() AND column_name = 'a'"
        " AND table_name = 't'"
    )
    [[type_name, words, charset, nullable]] = cursor.fetchall()
    # The default character set is the server's, or JSON's, which MariaDB has as a text.
    return _shape(type_name, words, charset if charset != "utf8mb4" else None, nullable == "YES")


def read_column(definition: str) -> tuple[Any, ...]:
    [change] = schema_changes(f"ALTER TABLE t ADD a {definition}", "x")
    step = (change.steps or [{}])[0]
    if step["do"] != "add-column":
        return (step["why"],)
    words = step["type"]
    charset = re.search(r" character set (\w+)", words)
    named = None if charset is None or charset[1] == "utf8mb4" else charset[1]
    return _shape(re.split(r"\W", words)[0], words, named, step["nullable"])


def tables_after(
    tables: dict[str, list[str]], sql: str, mode: SqlMode = SqlMode.NONE
) -> dict[str, list[str]]:
    """The tables with their columns after a statement, as it is read."""
    if statement_role(sql, mode) is not Role.SCHEMA:
        return tables
    found = {table: list(columns) for table, columns in tables.items()}
    for change in schema_changes(sql, "x", mode):
        _apply(change, found)
    return found


def _apply(change: SchemaChange, tables: dict[str, list[str]]) -> None:
    table, steps = change.table or "", change.steps or ()
    assert not any(step["do"] == "stop" for step in steps), steps
    if change.kind == "table-drop":
        tables.pop(table, None)
    elif change.kind == "table-create":
        like = tables[steps[0]["table"]] if steps else [column.name for column in change.columns]
        tables.setdefault(table, list(like))
    else:
        columns = tables.pop(table)
        for step in steps:
            if step["do"] == "drop-column" and step["name"] in columns:
                columns.remove(step["name"])
            elif step["do"] == "add-column" and step["name"] not in columns:
                columns.append(step["name"])
        names = {step["name"]: step["to"] for step in steps if step["do"] == "rename-column"}
        names |= {
            step["was"]: step["name"]
            for step in steps
            if step["do"] == "change-column" and "was" in step
        }
        tables[(change.new_name or ("", table))[1]] = [names.get(name, name) for name in columns]


def made_tables(cursor: pymysql.cursors.Cursor) -> dict[str, list[str]]:
    cursor.execute(
        "SELECT c.table_name, column_name FROM information_schema.columns c"
        " JOIN information_schema.tables t USING (table_schema, table_name)"
        " WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' ORDER BY ordinal_position"
    )
    found: dict[str, list[str]] = {}
    for table, column in cursor.fetchall():
        found.setdefault(table, []).append(column)
    return found


def logged(cursor: pymysql.cursors.Cursor, start: Position) -> list[str]:
    """The statements behind a position of the binlog: the server writes some in its own words."""
    cursor.execute(f"SHOW BINLOG EVENTS IN '{start.file}' FROM {start.offset}")
    found = [str(row[5]) for row in cursor.fetchall() if row[2] == "Query"]
    # MySQL also writes their transaction's number there.
    return [re.sub(r" /\* xid=\d+ \*/$", "", sql).removeprefix("use `x`; ") for sql in found]


def anew(cursor: pymysql.cursors.Cursor) -> None:
    # An engine that syncs nothing to disk: a second rather than ten.
    cursor.execute("SET default_storage_engine = MyISAM")
    for sql in ("DROP DATABASE IF EXISTS x", "CREATE DATABASE x", "USE x"):
        cursor.execute(sql)
    with suppress(pymysql.ProgrammingError):  # MySQL has none.
        cursor.execute("CREATE SEQUENCE s")


@contextmanager
def passing_over(mariadb: MariaDb, refused: list[str], sql: str) -> Iterator[None]:
    """Note a statement that MySQL or another MariaDB refuses; the usual one takes all."""
    is_reserved = "vector" in sql and mariadb.is_mariadb("11.7")
    try:
        yield
    except pymysql.Error:
        if mariadb.is_mariadb("10.11") and not is_reserved:
            raise
        refused.append(sql)


def _sorted(tables: dict[str, Sequence[str]] | dict[str, list[str]]) -> dict[str, list[str]]:
    return {table: sorted(columns) for table, columns in tables.items()}


def test_columns_are_read_as_the_server_makes_them(mariadb: MariaDb) -> None:
    [[nulls]] = mariadb.rows("SELECT @@explicit_defaults_for_timestamp")
    with mariadb.connect() as connection, connection.cursor() as cursor:
        anew(cursor)
        made: dict[str, tuple[Any, ...]] = {}
        refused: list[str] = []
        for definition in definitions():
            if not nulls and re.match(r"TIMESTAMP\b(?!.*NULL)", definition):
                continue  # MariaDB's setting before 10.10, with which that is NOT NULL
            with passing_over(mariadb, refused, definition):
                made[definition] = made_column(cursor, definition)
    assert {definition: read_column(definition) for definition in made} == made
    assert len(made) > 2 * len(refused)


def test_statements_are_read_as_the_server_runs_them(mariadb: MariaDb) -> None:
    read, made = {}, {}
    mode = SqlMode.MYSQL if is_mysql() else SqlMode.NONE
    refused: list[str] = []
    with mariadb.connect() as connection, connection.cursor() as cursor:
        for sql in statements():
            anew(cursor)
            cursor.execute(OLD)
            cursor.execute("CREATE TABLE other (id INT PRIMARY KEY, z INT)")
            before = made_tables(cursor)
            with passing_over(mariadb, refused, sql):
                start = current_position(connection)
                cursor.execute(sql)
                for statement in logged(cursor, start):
                    before = tables_after(before, statement, mode)
                read[sql] = _sorted(before)
                made[sql] = _sorted(made_tables(cursor))
    assert read == made
    assert len(made) > 2 * len(refused)


@pytest.mark.parametrize("verb", ["DROP", "DROP /*!40005 TEMPORARY */"])
def test_drop_of_temporary_tables_keeps_tables_of_the_name(verb: str) -> None:
    # MariaDB writes the second by itself when a session with temporary tables ends.
    tables = tables_after({"t": ["id"]}, f"{verb} TABLE IF EXISTS `t`")
    assert tables == ({} if verb == "DROP" else {"t": ["id"]})
