"""A seeded random workload: all types of columns, all kinds of statements that change tables."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import pymysql

from tests.databases.cdc.mariadb import MariaDb

Value = Callable[[random.Random], Any]


def _text(chance: random.Random) -> str:
    return "".join(chance.choices("aé'\"\\ %\n😀ß", k=chance.randrange(9))).strip()


def _time(chance: random.Random) -> str:
    sign, hours = chance.choice(["", "-"]), chance.randrange(100)
    return f"{sign}{hours:02}:{chance.randrange(60):02}:07.{chance.randrange(1000):03}"


TYPES: dict[str, Value] = {
    "TINYINT": lambda chance: chance.randrange(-128, 128),
    "INT UNSIGNED": lambda chance: chance.randrange(2**32),
    "BIGINT": lambda chance: chance.randrange(-(2**63), 2**63),
    "BIGINT UNSIGNED": lambda chance: chance.randrange(2**64),
    "DECIMAL(12,3)": lambda chance: f"{chance.randrange(-(10**9), 10**9) / 1000:.3f}",
    "FLOAT": lambda chance: chance.randrange(-999, 999) / 4,
    "DOUBLE": lambda chance: chance.uniform(-1e9, 1e9),
    "BIT(7)": lambda chance: chance.randrange(128),
    "YEAR": lambda chance: chance.randrange(1950, 2050),
    "DATE": lambda chance: f"20{chance.randrange(10, 99)}-02-{chance.randrange(1, 29):02}",
    "DATETIME": lambda chance: f"20{chance.randrange(10, 99)}-05-06 07:08:09",
    "DATETIME(6)": lambda chance: f"2024-05-06 07:08:09.{chance.randrange(10**6):06}",
    "TIMESTAMP(3) NULL": lambda chance: f"2024-05-06 07:08:09.{chance.randrange(1000):03}",
    "TIME(3)": _time,
    "CHAR(9)": _text,
    "VARCHAR(40)": _text,
    "VARCHAR(20) CHARACTER SET latin1": lambda chance: chance.choice(["é", "", "naïve"]),
    "TEXT": lambda chance: _text(chance) * chance.randrange(40),
    "BINARY(5)": lambda chance: chance.randbytes(chance.randrange(6)),
    "VARBINARY(20)": lambda chance: chance.randbytes(chance.randrange(20)),
    "BLOB": lambda chance: chance.randbytes(chance.randrange(300)),
    "ENUM('new','paid','it''s')": lambda chance: chance.choice(["new", "paid", "it's"]),
    "SET('a','b','c')": lambda chance: ",".join(chance.sample("abc", chance.randrange(4))),
    "JSON": lambda chance: json.dumps({"a": [_text(chance), chance.randrange(9)]}),
    "POINT": lambda chance: (chance.randrange(9), chance.randrange(9)),
}
_DEFAULTS = {
    "TINYINT": "DEFAULT -7",
    "DECIMAL(12,3)": "NOT NULL DEFAULT '1.5'",
    "DOUBLE": "NOT NULL",
    "DATETIME(6)": "DEFAULT '2024-05-06 07:08:09.5'",
    "CHAR(9)": "NOT NULL",
    "VARCHAR(40)": "DEFAULT 'it''s'",
    "BINARY(5)": "NOT NULL",
    "BIT(7)": "DEFAULT b'1010'",
    "ENUM('new','paid','it''s')": "NOT NULL",
    "SET('a','b','c')": "DEFAULT 'c,a'",
}
_CHANGED = {
    "TINYINT": "BIGINT",
    "INT UNSIGNED": "DOUBLE",
    "BIGINT": "VARCHAR(40)",
    "DECIMAL(12,3)": "DOUBLE",
    "FLOAT": "DOUBLE",
    "BIT(7)": "BIGINT",
    "DATE": "DATETIME",
    "DATETIME(6)": "DATE",
    "TIME(3)": "VARCHAR(40)",
    "CHAR(9)": "VARCHAR(40)",
    "VARCHAR(40)": "TEXT",
    "JSON": "TEXT",
}
"""The types that columns get in place of theirs: each takes all values, if need be less exactly."""
_KINDS = (
    *("CREATE TABLE", "CREATE OR REPLACE", " LIKE ", " SELECT * ", "DROP TABLE", "TRUNCATE"),
    *("RENAME TABLE t", " RENAME t", "tmp TO", "ADD COLUMN", " FIRST", " AFTER", "DEFAULT"),
    *("NOT NULL", "DROP COLUMN", "RENAME COLUMN", ", RENAME COLUMN", "MODIFY", "MODIFY id"),
    *("CHANGE", "CREATE VIEW"),
    *("REPLACE INTO", "UPDATE", "SET id = id + 3", "DELETE", "seq_100_to", "COMMIT", "ROLLBACK"),
)
_MOST_TABLES = 5
_KEYS = 25


class SchemaWorkload:
    """Changes rows and tables of a database. The seed determines how.

    Args:
        large: how many rows the largest transactions have.
    """

    def __init__(self, mariadb: MariaDb, database: str, seed: int, large: int = 1_000) -> None:
        self._mariadb = mariadb
        self._database = database
        self._chance = random.Random(seed)
        self._large = large
        self._tables: dict[str, dict[str, str]] = {}
        self._made = 0
        self.statements: list[str] = []

    def run(self, steps: int, pause_s: float = 0) -> None:
        """Run so many transactions or statements, with pauses between."""
        connection = self._mariadb.connect(self._database)
        try:
            with connection.cursor() as cursor:
                for _ in range(steps):
                    self._step(cursor)
                    time.sleep(pause_s)
        finally:
            connection.close()

    def missing(self) -> list[str]:
        """The kinds of statements and types that have not occurred yet."""
        text = "\n".join(self.statements)
        return [kind for kind in (*_KINDS, *TYPES) if kind not in text]

    def _step(self, cursor: pymysql.cursors.Cursor) -> None:
        chance = self._chance
        if len(self._tables) < 2:
            self._create(cursor)
        elif chance.random() < 0.7:
            self._transaction(cursor)
        else:
            chance.choice(
                [
                    self._create, self._drop, self._truncate, self._like, self._select,
                    self._rename, self._swap, self._replace, self._add, self._add, self._add,
                    self._drop_column, self._rename_column, self._swap_columns,
                    self._change_column, self._change_column, self._change_column, self._nothing,
                ]
            )(cursor)  # fmt: skip

    def _run(self, cursor: pymysql.cursors.Cursor, sql: str, *values: Any) -> None:
        self.statements.append(sql)
        cursor.execute(sql, values or None)

    def _name(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}{self._made}"

    def _table(self) -> str:
        return self._chance.choice(sorted(self._tables))

    def _transaction(self, cursor: pymysql.cursors.Cursor) -> None:
        chance = self._chance
        self._run(cursor, "BEGIN")
        for _ in range(chance.randrange(1, 6)):
            self._change(cursor, self._table())
        if chance.random() < 0.05:
            table = self._table()
            self._run(
                cursor,
                f"REPLACE INTO {table} (id) SELECT seq FROM seq_100_to_{100 + self._large}",
            )
            self._run(cursor, f"DELETE FROM {table} WHERE id > %s", 100 + self._large // 10)
        self._run(cursor, "ROLLBACK" if chance.random() < 0.05 else "COMMIT")

    def _change(self, cursor: pymysql.cursors.Cursor, table: str) -> None:
        chance, columns = self._chance, self._tables[table]
        number = chance.randrange(_KEYS)
        match chance.randrange(6):
            case 0:
                self._run(cursor, f"DELETE FROM {table} WHERE id = %s", number)
            case 1:
                sql = f"UPDATE IGNORE {table} SET id = id + 3 WHERE id BETWEEN %s AND %s"
                self._run(cursor, f"{sql} ORDER BY id DESC", number, number + 4)
            case 2 if columns:
                column = chance.choice(sorted(columns))
                place, values = self._value(columns[column])
                sql = f"UPDATE {table} SET {column} = {place} WHERE id < %s"
                self._run(cursor, sql, *values, number)
            case _:
                found = [self._value(kind) for kind in columns.values()]
                names = ", ".join(["id", *columns])
                places = ", ".join(["%s", *(place for place, _ in found)])
                values = [value for _, values in found for value in values]
                sql = f"REPLACE INTO {table} ({names}) VALUES ({places})"
                self._run(cursor, sql, number, *values)

    def _value(self, kind: str) -> tuple[str, list[Any]]:
        name = kind.removesuffix(" !")
        if name == kind and self._chance.random() < 0.1:
            return "%s", [None]
        value = TYPES[name](self._chance)
        return ("POINT(%s, %s)", list(value)) if isinstance(value, tuple) else ("%s", [value])

    def _create(self, cursor: pymysql.cursors.Cursor, verb: str = "CREATE TABLE") -> None:
        if len(self._tables) >= _MOST_TABLES:
            self._drop(cursor)
        table = self._table() if "REPLACE" in verb else self._name("t")
        chosen = self._chance.sample(sorted(TYPES), self._chance.randrange(2, 9))
        columns = {self._name("c"): kind for kind in chosen}
        shown = "".join(f", {name} {kind}" for name, kind in columns.items())
        self._run(cursor, f"{verb} {table} (id INT{shown}, PRIMARY KEY (id))")
        self._tables[table] = columns

    def _replace(self, cursor: pymysql.cursors.Cursor) -> None:
        self._create(cursor, "CREATE OR REPLACE TABLE")

    def _drop(self, cursor: pymysql.cursors.Cursor) -> None:
        table = self._table()
        self._run(cursor, f"DROP TABLE {table}")
        del self._tables[table]

    def _truncate(self, cursor: pymysql.cursors.Cursor) -> None:
        self._run(cursor, f"TRUNCATE TABLE {self._table()}")

    def _like(self, cursor: pymysql.cursors.Cursor) -> None:
        table, new = self._table(), self._name("t")
        self._run(cursor, f"CREATE TABLE {new} LIKE {table}")
        self._run(cursor, f"INSERT INTO {new} SELECT * FROM {table}")
        self._tables[new] = dict(self._tables[table])

    def _select(self, cursor: pymysql.cursors.Cursor) -> None:
        table, new = self._table(), self._name("t")
        self._run(cursor, f"CREATE TABLE {new} (PRIMARY KEY (id)) SELECT * FROM {table}")
        self._tables[new] = dict(self._tables[table])

    def _rename(self, cursor: pymysql.cursors.Cursor) -> None:
        table, new = self._table(), self._name("t")
        way = self._chance.choice(["RENAME TABLE {} TO {}", "ALTER TABLE {} RENAME {}"])
        self._run(cursor, way.format(table, new))
        self._tables[new] = self._tables.pop(table)

    def _swap(self, cursor: pymysql.cursors.Cursor) -> None:
        one, other = self._chance.sample(sorted(self._tables), 2)
        self._run(cursor, f"RENAME TABLE {one} TO tmp, {other} TO {one}, tmp TO {other}")
        self._tables[one], self._tables[other] = self._tables[other], self._tables[one]

    def _add(self, cursor: pymysql.cursors.Cursor) -> None:
        table, column = self._table(), self._name("c")
        kind = self._chance.choice(sorted(TYPES))
        default = _DEFAULTS.get(kind, "")
        place = self._chance.choice(["", " FIRST", " AFTER id"])
        self._run(cursor, f"ALTER TABLE {table} ADD COLUMN {column} {kind} {default}{place}")
        self._tables[table][column] = f"{kind} !" if "NOT NULL" in default else kind

    def _drop_column(self, cursor: pymysql.cursors.Cursor) -> None:
        table = self._table()
        if self._tables[table]:
            column = self._chance.choice(sorted(self._tables[table]))
            self._run(cursor, f"ALTER TABLE {table} DROP COLUMN {column}")
            del self._tables[table][column]

    def _rename_column(self, cursor: pymysql.cursors.Cursor) -> None:
        table, new = self._table(), self._name("c")
        if self._tables[table]:
            column = self._chance.choice(sorted(self._tables[table]))
            self._run(cursor, f"ALTER TABLE {table} RENAME COLUMN {column} TO {new}")
            self._tables[table][new] = self._tables[table].pop(column)

    def _swap_columns(self, cursor: pymysql.cursors.Cursor) -> None:
        table = self._table()
        columns = self._tables[table]
        if len(columns) > 1:
            one, other = self._chance.sample(sorted(columns), 2)
            sql = f"ALTER TABLE {table} RENAME COLUMN {one} TO {other}"
            self._run(cursor, f"{sql}, RENAME COLUMN {other} TO {one}")
            columns[one], columns[other] = columns[other], columns[one]

    def _change_column(self, cursor: pymysql.cursors.Cursor) -> None:
        table, chance = self._table(), self._chance
        if chance.random() < 0.2:
            kind = chance.choice(["INT", "BIGINT", "DECIMAL(12,0)"])
            self._run(cursor, f"ALTER TABLE {table} MODIFY id {kind}")
        columns = self._tables[table]
        found = sorted(name for name, kind in columns.items() if kind in _CHANGED)
        if not found:
            return
        column = chance.choice(found)
        kind = _CHANGED[columns.pop(column)]
        if chance.random() < 0.5:
            self._run(cursor, f"ALTER TABLE {table} MODIFY {column} {kind}")
            columns[column] = kind
        else:
            new = self._name("c")
            self._run(cursor, f"ALTER TABLE {table} CHANGE {column} {new} {kind}")
            columns[new] = kind

    def _nothing(self, cursor: pymysql.cursors.Cursor) -> None:
        table, name = self._table(), self._name("n")
        for sql in (
            f"ALTER TABLE {table} ADD INDEX {name} (id), COMMENT 'DROP COLUMN id'",
            f"CREATE VIEW {name} AS SELECT id FROM {table}",
            f"DROP VIEW {name}",
            f"CREATE SEQUENCE {name}",
            f"DROP SEQUENCE {name}",
            f"ANALYZE TABLE {table}",
        ):
            self._run(cursor, sql)
