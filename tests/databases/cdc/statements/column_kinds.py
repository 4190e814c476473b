"""Types of columns, each with the forms in which MariaDB takes a default or a value of it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ColumnKind:
    """One type of ``information_schema.COLUMNS.DATA_TYPE``.

    Args:
        declared: ways to declare it.
        literals: SQL of defaults and values; the server may round, cut or refuse them.
        widened: declarations that keep all its values, whatever it was declared as.
    """

    declared: Sequence[str]
    literals: Sequence[str]
    widened: Sequence[str] = ()


_WHOLE = (
    "5", "'5'", "-7", "+7", "0", "(5)", "(2 + 3)", "-(7)", "007", "1e1", "1.6", "'1.6'", "-1.5",
    "2.5",
    "0x41", "x'41'", "b'101'", "0b101", "TRUE", "FALSE", "' 5 '", "1e-3", "5.", ".5", "_latin1'5'",
    "'5' ", "(NULL)", "100", "'+9'", "(3)", "(-4)", "(1.5)", "(0x41)", "CAST('7' AS INT)",
    "ABS(-3)",
)  # fmt: skip
_EXACT = (*_WHOLE, "1.005", "'1.50'", "-0.004", "99.995", "'-12.5'", "1.5e1", "'1e1'")
_NEAR = (
    *_EXACT, "1.1", "123.456", "16777217", "0.1", "1e10", "'2.675'", "1e-7", "3.4028e38", "-0.0",
    "1.17e-38", "123456.789", "(0.1 + 0.2)",
)  # fmt: skip
_DATES = (
    "'2024-01-05'", "'2024-1-5'", "'20240105'", "20240105", "'24-1-5'", "'2024/01/05'",
    "'99-12-31'",
    "'2024-01-05 10:00:00'", "DATE'2024-02-29'", "{d '2024-01-05'}", "'0000-00-00'", "0",
    "'2024.1.5'",
    "TIMESTAMP'2024-01-05 10:00:00'", "('2024-01-05')", "240105", "'2024-00-00'",
    "CURDATE()", "(NOW())",
)  # fmt: skip
_DATETIMES = (
    "'2024-05-06 07:08:09'", "'2024-05-06 07:08:09.55'", "'2024-5-6 7:8:9'",
    "'2024-05-06T07:08:09'",
    "20240506070809", "'20240506070809'", "TIMESTAMP'2024-05-06 07:08:09.5'", "'2024-05-06'",
    "20240506",
    "{ts '2024-05-06 07:08:09'}", "'2024-05-06 07:08:09.999999'", "'24-05-06 07:08'", "0",
    "'2024-05-06 07:08:59.9'", "'0000-00-00 00:00:00'", "DATE'2024-05-06'",
    "('2024-05-06 07:08:09')",
    "'2024-05-06 07:08:09.1234567'", "20240506070809.75", "'2024/05/06 07.08.09'",
    "CURRENT_TIMESTAMP", "NOW()", "(NOW(6))", "CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP",
)  # fmt: skip
_TIMES = (
    "'10:00:00'", "'1:2:3'", "'101112'", "101112", "'-838:59:59'", "'10:11'", "'5'", "5",
    "'1 10:00:00'",
    "TIME'10:00:00'", "{t '10:11:12'}", "'10:00:00.999999'", "'-0:0:1.5'", "0", "10.5", "('1:00')",
    "TIME'-10:00:00.75'", "'23:59:59.6'", "'10:00:00.1234567'",
    "CURTIME()",
)  # fmt: skip
_TEXTS = (
    "'a'", "''", "'it''s'", "'a\\nb'", "'a\\Zc'", "'\\%'", "'\\''", "'c:\\\\dir'", "'a\\qb'",
    "N'x'", "n'y'",
    "_latin1 0xe9", "_utf8mb4 0xc3a9", "_utf8mb4'z'", "x'41'", "0x4142", "b'1000001'", "5", "1.50",
    "TRUE",
    "'end  '", "' x'", "'a' 'b'", "'-- no'", "'/* c */'", "'a;b'", "'%s'", "'tab\\t'", "'\\_'",
    "('x')",
    "CONCAT('a','b')", "UPPER('q')", "1e3", "-5", "0.10", "'\\\\'", "'\\\"'", "'\"'", "'`'",
    "'2024-01-05'", "DATE'2024-1-5'", "'abcdefghijklmnopqrstuvwxyz'", "\"dq\"", "\"it's\"",
    "'\\0z'",
    "_binary'b'", "'x' COLLATE utf8mb4_bin", "007", "+5", "'{d'",
    "UUID()", "DATABASE()", "CURRENT_USER()", "(RAND())", "NOW()",
)  # fmt: skip
_BYTES = (
    "x'00ff'", "0x00ff", "X'41'", "'abc'", "''", "b'11111111'", "0b1", "'a\\0b'", "'it''s'", "5",
    "('x')",
    "'\\n'", "_latin1'e'", "0x", "x''", "1.5", "UNHEX('ff00')",
)  # fmt: skip
_LABELS = ("'new'", "'NEW'", "'paid '", "'it''s'", "2", "'2'", "''", "1", "('new')", "'new' ")
_MEMBERS = ("'a'", "'b,a'", "'A'", "''", "3", "'a,b,c'", "'c,a,a'", "('b')")
_ENUM = "ENUM('new','paid','it''s')"
_SET = "SET('a','b','c')"

KINDS: Mapping[str, ColumnKind] = {
    "tinyint": ColumnKind(
        ("TINYINT", "TINYINT UNSIGNED", "BOOL", "INT1", "TINYINT(3) ZEROFILL"),
        _WHOLE,
        ("SMALLINT", "INT", "BIGINT"),
    ),
    "smallint": ColumnKind(("SMALLINT", "INT2 UNSIGNED"), _WHOLE, ("INT", "BIGINT")),
    "mediumint": ColumnKind(("MEDIUMINT", "INT3", "MIDDLEINT"), _WHOLE, ("INT", "BIGINT")),
    "int": ColumnKind(
        ("INT", "INTEGER", "INT UNSIGNED", "INT(10)", "INT4", "INT SIGNED"),
        _WHOLE,
        ("BIGINT", "DECIMAL(20,0)"),
    ),
    "bigint": ColumnKind(("BIGINT", "INT8", "BIGINT UNSIGNED"), _WHOLE, ("DECIMAL(25,0)",)),
    "decimal": ColumnKind(
        ("DECIMAL(8,2)", "NUMERIC(8,2)", "DEC", "FIXED(8,3)", "DECIMAL(30,10)", "NUMBER"),
        _EXACT,
        ("DECIMAL(40,10)",),
    ),
    "float": ColumnKind(
        ("FLOAT", "FLOAT(7,2)", "FLOAT(20)", "FLOAT UNSIGNED", "FLOAT4"), _NEAR, ("DOUBLE",)
    ),
    "double": ColumnKind(
        ("DOUBLE", "DOUBLE PRECISION", "REAL", "DOUBLE(10,2)", "FLOAT(30)", "FLOAT8"), _NEAR
    ),
    "bit": ColumnKind(
        ("BIT", "BIT(7)", "BIT(8)", "BIT(20)", "BIT(64)"),
        (*_WHOLE[:14], "b'1'", "'a'", "'5'", "x'05'", "0x05", "'1'"),
        ("BIT(64)",),
    ),
    "year": ColumnKind(
        ("YEAR", "YEAR(4)"),
        (
            "99",
            "69",
            "70",
            "'99'",
            "'0'",
            "0",
            "1999",
            "'1999'",
            "2",
            "'2'",
            "(2020)",
            "'70'",
            "1e1",
        ),
    ),
    "date": ColumnKind(("DATE",), _DATES, ("DATETIME",)),
    "datetime": ColumnKind(
        ("DATETIME", "DATETIME(3)", "DATETIME(6)", "DATETIME(1)"), _DATETIMES, ("DATETIME(6)",)
    ),
    "timestamp": ColumnKind(
        ("TIMESTAMP NULL", "TIMESTAMP(3) NULL", "TIMESTAMP", "TIMESTAMP(6) NULL"),
        (*_DATETIMES, "'2038-01-01 00:00:00'"),
    ),
    "time": ColumnKind(("TIME", "TIME(2)", "TIME(6)"), _TIMES, ("TIME(6)",)),
    "char": ColumnKind(
        ("CHAR(30)", "CHAR(3)", "CHARACTER(9)", "NCHAR(9)", "CHAR", "CHAR(9) COLLATE utf8mb4_bin"),
        _TEXTS,
        ("CHAR(80)",),
    ),
    "varchar": ColumnKind(
        (
            *("VARCHAR(40)", "VARCHAR(3)", "CHAR VARYING(9)", "NVARCHAR(20)", "VARCHAR2(20)"),
            "VARCHAR(30) CHARACTER SET latin1",
            "VARCHAR(30) CHARSET cp1251",
            "VARCHAR(30) CHARACTER SET utf8 COLLATE utf8_bin",
            "VARCHAR(30) CHARACTER SET gbk",
            "VARCHAR(30) CHARACTER SET sjis",
            "VARCHAR(30) CHARACTER SET ucs2",
        ),
        _TEXTS,
        ("VARCHAR(90)", "TEXT"),
    ),
    "text": ColumnKind(("TEXT", "LONG", "TEXT CHARACTER SET latin1"), _TEXTS, ("LONGTEXT",)),
    "tinytext": ColumnKind(("TINYTEXT",), _TEXTS, ("TEXT",)),
    "mediumtext": ColumnKind(("MEDIUMTEXT", "CLOB"), _TEXTS, ("LONGTEXT",)),
    "longtext": ColumnKind(("LONGTEXT",), _TEXTS),
    "json": ColumnKind(("JSON",), ("'{\"a\": 1}'", "'[]'", "'1'", "'\"x\\\\n\"'", "('{}')")),
    "binary": ColumnKind(("BINARY(5)", "BINARY", "CHAR(5) BYTE"), _BYTES),
    "varbinary": ColumnKind(("VARBINARY(20)", "VARBINARY(2)", "RAW(9)"), _BYTES, ("BLOB",)),
    "blob": ColumnKind(("BLOB", "LONG VARBINARY"), _BYTES, ("LONGBLOB",)),
    "tinyblob": ColumnKind(("TINYBLOB",), _BYTES, ("BLOB",)),
    "mediumblob": ColumnKind(("MEDIUMBLOB",), _BYTES, ("LONGBLOB",)),
    "longblob": ColumnKind(("LONGBLOB",), _BYTES),
    "enum": ColumnKind(
        (_ENUM, "ENUM('new','paid','it''s') NOT NULL"),
        _LABELS,
        ("ENUM('new','paid','it''s','old')",),
    ),
    "set": ColumnKind((_SET,), _MEMBERS, ("SET('a','b','c','d')",)),
    "point": ColumnKind(("POINT",), ("POINT(1, 2)",)),
    "uuid": ColumnKind(("UUID",), ("'123e4567-e89b-12d3-a456-426655440000'", "x'00'")),
    "inet6": ColumnKind(("INET6",), ("'::1'", "'1.2.3.4'", "'2001:DB8::1'")),
    "inet4": ColumnKind(("INET4",), ("'1.2.3.4'",)),
}
"""The kinds by DATA_TYPE."""

TEXT_KINDS = ("char", "varchar", "text", "tinytext", "mediumtext", "longtext")
BYTE_KINDS = ("binary", "varbinary", "blob", "tinyblob", "mediumblob", "longblob")
COMMON = (
    "tinyint", "int", "int", "bigint", "decimal", "decimal", "float", "double", "bit", "year",
    "date",
    "datetime", "datetime", "timestamp", "time", "char", "varchar", "varchar", "varchar", "text",
    "enum",
    "set", "varbinary", "blob", "json", "smallint", "mediumint", "longtext", "tinytext", "binary",
    "mediumtext", "tinyblob", "mediumblob", "longblob", "point", "uuid", "inet6", "inet4",
)  # fmt: skip
"""The kinds of new columns, the frequent ones several times."""


def number_of_literals() -> int:
    """The number of all forms of literals."""
    return sum(len(kind.literals) for kind in KINDS.values())


def any_kind(chance: random.Random) -> str:
    """Choose a kind for a new column."""
    return chance.choice(COMMON)
