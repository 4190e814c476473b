"""The statements that are recorded: every type, and what a log may have twice or anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Phases:
    """Statements of the five runs of a connector.

    Args:
        tables: that exist at the end.
        lost: what is delivered, but the connector is killed before it stores its offsets.
    """

    tables: Sequence[str]
    begin: Sequence[str]
    before: Sequence[str]
    changes: Sequence[str]
    lost: Sequence[str]
    again: Sequence[str]
    anew: Sequence[str]


_MARIADB_TYPES = (
    "INSERT INTO shop.kinds VALUES (1, -5, 250, 18446744073709551615, 1234567.890123, 1.5, 2.25,"
    " 1, b'101', '2024-02-29', '2024-02-29 12:34:56', '2024-02-29 12:34:56.123456',"
    " '2024-02-29 12:34:56', '2024-02-29 12:34:56.789', '-101:02:03', '12:34:56.789012', 2024,"
    " 'ä', 'text', 'long', x'00ff10', x'01020304', 'b,c', 'x,y', '{\"a\": [1, 2.50]}')",
    "INSERT INTO shop.kinds (id) VALUES (2)",
    "INSERT INTO shop.kinds (id, d, dt, dtm, t, u64) VALUES (3, -0.000001, '1000-01-01',"
    " '9999-12-31 23:59:59', '838:59:59', 9223372036854775808)",
)
MARIADB = Phases(
    tables=("kinds", "orders", "items", "renamed", "marks"),
    begin=(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.marks (id INT PRIMARY KEY, mark VARCHAR(20))",
        "INSERT INTO shop.marks VALUES (1, '')",
        "CREATE TABLE shop.kinds (id INT PRIMARY KEY, i8 TINYINT, u8 TINYINT UNSIGNED,"
        " u64 BIGINT UNSIGNED, d DECIMAL(20,6), f FLOAT, db DOUBLE, b1 BIT(1), b12 BIT(12),"
        " dt DATE, dtm DATETIME, dtm6 DATETIME(6), ts TIMESTAMP NULL, ts3 TIMESTAMP(3) NULL,"
        " t TIME, t6 TIME(6), y YEAR, c CHAR(5), v VARCHAR(50), tx TEXT, bl BLOB, bn BINARY(4),"
        " e ENUM('a', 'b,c'), s SET('x', 'y'), j JSON)",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, state VARCHAR(20), total DECIMAL(10,2))",
        "CREATE TABLE shop.items (orders INT, line INT, name VARCHAR(20),"
        " PRIMARY KEY (orders, line))",
        "CREATE TABLE shop.gone (id INT PRIMARY KEY)",
        "CREATE TABLE shop.old_name (id INT PRIMARY KEY, n INT)",
        _MARIADB_TYPES[0],
        "INSERT INTO shop.orders VALUES (1, 'new', 1.50), (2, 'new', 2.00), (3, 'new', 3.00)",
        "INSERT INTO shop.items VALUES (1, 1, 'nail'), (1, 2, 'nut')",
        "INSERT INTO shop.gone VALUES (1)",
        "INSERT INTO shop.old_name VALUES (1, 1)",
    ),
    before=(),
    changes=(
        *_MARIADB_TYPES[1:],
        "UPDATE shop.kinds SET dtm6 = '2030-01-01', j = '[]' WHERE id = 1",
        "BEGIN",
        "INSERT INTO shop.orders VALUES (4, 'new', 4.00), (5, 'new', 5.00)",
        "UPDATE shop.orders SET state = 'paid' WHERE id <= 2",
        "INSERT INTO shop.items VALUES (4, 1, 'bolt')",
        "SAVEPOINT a",
        "INSERT INTO shop.items VALUES (4, 2, 'never')",
        "ROLLBACK TO SAVEPOINT a",
        "COMMIT",
        "DELETE FROM shop.orders WHERE id = 3",
        "UPDATE shop.orders SET id = 30 WHERE id = 2",
        "ALTER TABLE shop.orders ADD COLUMN note VARCHAR(20)",
        "UPDATE shop.orders SET note = 'noted' WHERE id = 1",
        "ALTER TABLE shop.orders RENAME COLUMN note TO remark",
        "INSERT INTO shop.orders VALUES (6, 'new', 6.00, 'remarked')",
        "ALTER TABLE shop.orders DROP COLUMN total",
        "INSERT INTO shop.orders VALUES (7, 'new', NULL)",
        "RENAME TABLE shop.old_name TO shop.renamed",
        "INSERT INTO shop.renamed VALUES (2, 2)",
        "DROP TABLE shop.gone",
        "TRUNCATE TABLE shop.items",
        "INSERT INTO shop.items VALUES (7, 1, 'screw')",
    ),
    lost=(
        "INSERT INTO shop.orders VALUES (8, 'new', 'a')",
        "BEGIN",
        "UPDATE shop.orders SET state = 'paid' WHERE id IN (7, 8)",
        "DELETE FROM shop.orders WHERE id = 6",
        "COMMIT",
        "INSERT INTO shop.orders VALUES (6, 'again', 'b')",
        "UPDATE shop.orders SET id = 60 WHERE id = 6",
    ),
    again=(
        "UPDATE shop.orders SET state = 'done' WHERE id = 60",
        "DELETE FROM shop.orders WHERE id = 8",
    ),
    anew=(
        "DELETE FROM shop.orders WHERE id IN (1, 30)",
        "DELETE FROM shop.items",
        "INSERT INTO shop.orders VALUES (9, 'new', 'c')",
    ),
)

_POSTGRES_TYPES = (
    "INSERT INTO shop.kinds VALUES (1, -5, 9223372036854775807, 1234567.890123, 1e30, 1.5, 2.25,"
    " true, B'1', B'10011', B'101', '2024-02-29', '12:34:56.789012', '12:34:56+02',"
    " '2024-02-29 12:34:56.123456', '2024-02-29 12:34:56.123', '2024-02-29 12:34:56.5+02',"
    " '1 year 2 mons 3 days 04:05:06', 'ä', 'text', 'long', '\\x00ff10', '{\"a\": [1, 2.50]}',"
    " '{\"b\": null}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{1,2,NULL}', '{a,\"b c\"}', 'sad',"
    " '192.168.0.1')",
    "INSERT INTO shop.kinds (id) VALUES (2)",
    "INSERT INTO shop.kinds (id, num, dt, ts, tz) VALUES (3, -0.000001, '0044-03-15',"
    " '10000-01-01 00:00:00', '1900-01-01 00:00:00+00')",
)
POSTGRES = Phases(
    tables=("kinds", "orders", "items", "papers", "marks"),
    begin=(
        "CREATE SCHEMA shop",
        "CREATE TYPE shop.mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE shop.marks (id INT PRIMARY KEY, mark VARCHAR(20))",
        "INSERT INTO shop.marks VALUES (1, '')",
        "CREATE TABLE shop.kinds (id INT PRIMARY KEY, i16 SMALLINT, i64 BIGINT, num NUMERIC(20,6),"
        " anynum NUMERIC, r REAL, d DOUBLE PRECISION, b BOOLEAN, b1 BIT(1), b5 BIT(5),"
        " vb BIT VARYING(9), dt DATE, t TIME, tt TIMETZ, ts TIMESTAMP, ts3 TIMESTAMP(3),"
        " tz TIMESTAMPTZ, iv INTERVAL, c CHAR(5), v VARCHAR(50), tx TEXT, by BYTEA, j JSON,"
        " jb JSONB, u UUID, ai INT[], at TEXT[], m shop.mood, ip INET)",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, state VARCHAR(20), total NUMERIC(10,2))",
        "CREATE TABLE shop.items (orders INT, line INT, name VARCHAR(20),"
        " PRIMARY KEY (orders, line))",
        "CREATE TABLE shop.papers (id INT PRIMARY KEY, title TEXT, body TEXT, photo BYTEA)",
        "ALTER TABLE shop.papers ALTER body SET STORAGE EXTERNAL, ALTER photo SET STORAGE EXTERNAL",
        _POSTGRES_TYPES[0],
        "INSERT INTO shop.orders VALUES (1, 'new', 1.50), (2, 'new', 2.00), (3, 'new', 3.00)",
        "INSERT INTO shop.items VALUES (1, 1, 'nail'), (1, 2, 'nut')",
        "INSERT INTO shop.papers VALUES (1, 'one', repeat('one ', 800),"
        " decode(repeat('0f', 3000), 'hex'))",
    ),
    before=(),
    changes=(
        *_POSTGRES_TYPES[1:],
        "UPDATE shop.kinds SET ts = '2030-01-01', jb = '[]' WHERE id = 1",
        "UPDATE shop.papers SET title = 'first' WHERE id = 1",
        "INSERT INTO shop.papers VALUES (2, 'two', repeat('two ', 800), NULL)",
        "UPDATE shop.papers SET title = 'second' WHERE id = 2",
        "BEGIN",
        "INSERT INTO shop.orders VALUES (4, 'new', 4.00), (5, 'new', 5.00)",
        "UPDATE shop.orders SET state = 'paid' WHERE id <= 2",
        "INSERT INTO shop.items VALUES (4, 1, 'bolt')",
        "SAVEPOINT a",
        "INSERT INTO shop.items VALUES (4, 2, 'never')",
        "ROLLBACK TO SAVEPOINT a",
        "COMMIT",
        "DELETE FROM shop.orders WHERE id = 3",
        "UPDATE shop.orders SET id = 30 WHERE id = 2",
        "ALTER TABLE shop.orders ADD COLUMN note VARCHAR(20)",
        "UPDATE shop.orders SET note = 'noted' WHERE id = 1",
        "ALTER TABLE shop.orders DROP COLUMN total",
        "INSERT INTO shop.orders VALUES (7, 'new', NULL)",
        "TRUNCATE TABLE shop.items",
        "INSERT INTO shop.items VALUES (7, 1, 'screw'), (7, 2, 'hook')",
    ),
    lost=(
        "INSERT INTO shop.orders VALUES (8, 'new', 'a')",
        "BEGIN",
        "UPDATE shop.orders SET state = 'paid' WHERE id IN (7, 8)",
        "DELETE FROM shop.orders WHERE id = 5",
        "COMMIT",
        "INSERT INTO shop.orders VALUES (6, 'again', 'b')",
        "UPDATE shop.orders SET id = 60 WHERE id = 6",
    ),
    again=(
        "UPDATE shop.orders SET state = 'done' WHERE id = 60",
        "DELETE FROM shop.orders WHERE id = 8",
    ),
    anew=(
        "DELETE FROM shop.orders WHERE id IN (1, 30)",
        "DELETE FROM shop.items WHERE line = 2",
        "INSERT INTO shop.orders VALUES (9, 'new', 'c')",
    ),
)
