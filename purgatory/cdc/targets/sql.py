"""What SQLite and PostgreSQL have in common: most of the SQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

from purgatory.cdc.column_types import CONVERTERS, ColumnType, Value
from purgatory.cdc.errors import TargetError
from purgatory.cdc.targets.target import OWN_KEYS, OWN_TABLES, Table

_OWN_TYPES = {
    "text": ColumnType.TEXT,
    "int": ColumnType.BIGINT,
    "bigint": ColumnType.BIGINT,
    "binary": ColumnType.BINARY,
}
_PLACE = ("position", "number", "partition", "offset")
_INDEXES = {
    "purgatory_waiting_unit": ("topic", "unit", "xoffset", "wanted"),
    "purgatory_waiting_partition": ("topic", "partition", "offset"),
}
"""The columns of what waits, beside the primary key."""
_EARLIER_WAITING = "purgatory_pending"


class SqlTarget(ABC):
    """One connection that speaks SQL; see `Target`. The driver must not begin transactions."""

    begin = "BEGIN"
    placeholder = "?"
    lock_row = ""
    """What follows a SELECT whose row nobody else may change until the transaction's end."""
    type_names: ClassVar[Mapping[ColumnType, str]]

    def __init__(self) -> None:
        self._in_transaction = False
        self._upsert_sql = cache(self._upsert_text)
        self._delete_sql = cache(self._delete_text)

    @abstractmethod
    def _run(self, sql: str, values: Sequence[Value] = ()) -> Any:
        """Execute a statement, and return its cursor."""

    @abstractmethod
    def _run_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        """Execute a statement once for each row, in order."""

    def quote(self, name: str) -> str:
        """A name in SQL."""
        return '"' + name.replace('"', '""') + '"'

    def prepare(self) -> None:
        with self.transaction():
            self.schema_lock()
            for name, columns in OWN_TABLES.items():
                types = {column: _OWN_TYPES[kind] for column, kind in columns.items()}
                self._create(Table(name, types, OWN_KEYS.get(name, ())))
            for name, indexed in _INDEXES.items():
                self._run(
                    f"CREATE INDEX IF NOT EXISTS {name} ON purgatory_waiting "
                    f"({self._names(indexed)})"
                )
            self._check_version()
            self.insert_own("purgatory_schema", [(0, 0)])

    def _check_version(self) -> None:
        """An earlier version kept what waits elsewhere, and what it kept must not be lost."""
        if self.table(_EARLIER_WAITING) is not None:
            if self.has_rows(_EARLIER_WAITING):
                raise TargetError(
                    f"the target's {_EARLIER_WAITING} has records of unfinished transactions that "
                    "an earlier version wrote: let that version finish them, or begin a new target"
                )
            self.drop_table(_EARLIER_WAITING)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._in_transaction:
            with self.savepoint():
                yield
            return
        self._run(self.begin)
        self._in_transaction = True
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._in_transaction = False

    def _roll_back(self) -> None:
        """Undo the transaction, if the connection is still there to do so."""
        try:
            self._run("ROLLBACK")
        except Exception as error:
            if not self.is_lost(error):
                raise

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        self._run("SAVEPOINT purgatory")
        try:
            yield
        except Exception as error:
            if not self.is_lost(error):
                self._run("ROLLBACK TO SAVEPOINT purgatory")
                self._run("RELEASE SAVEPOINT purgatory")
            raise
        self._run("RELEASE SAVEPOINT purgatory")

    @abstractmethod
    def schema_lock(self) -> None:
        """See `Target`."""

    @abstractmethod
    def table(self, name: str) -> Table | None:
        """See `Target`."""

    def lock_offset(self, topic: str, partition: int) -> int:
        self.insert_own("purgatory_offsets", [(topic, partition, 0)])
        found = self._run(
            f"SELECT next_offset FROM purgatory_offsets WHERE topic = {self.placeholder} "
            f"AND partition = {self.placeholder}{self.lock_row}",
            (topic, partition),
        ).fetchone()
        return int(found[0])

    def store_offset(self, topic: str, partition: int, next_offset: int) -> None:
        self._run(
            f"UPDATE purgatory_offsets SET next_offset = {self.placeholder} "
            f"WHERE topic = {self.placeholder} AND partition = {self.placeholder}",
            (next_offset, topic, partition),
        )

    def create_table(self, table: Table) -> None:
        self._create(table)

    def _create(self, table: Table) -> None:
        columns = [
            f"{self.quote(name)} {self.type_names[kind]}"
            + (" NOT NULL" if name in table.primary_key else "")
            for name, kind in table.columns.items()
        ]
        if table.primary_key:
            columns.append(f"PRIMARY KEY ({self._names(table.primary_key)})")
        self._run(
            f"CREATE TABLE IF NOT EXISTS {self.quote(table.name)} ({', '.join(columns)})"
            + self._table_options(table)
        )

    def _table_options(self, table: Table) -> str:
        return ""

    def drop_table(self, table: str) -> None:
        self._run(f"DROP TABLE {self.quote(table)}")

    def rename_table(self, table: str, new: str) -> None:
        self._run(f"ALTER TABLE {self.quote(table)} RENAME TO {self.quote(new)}")

    def clear_table(self, table: str) -> None:
        # TRUNCATE would let those who began to read before see an empty table.
        self._run(f"DELETE FROM {self.quote(table)}")

    def add_column(self, table: str, column: str, column_type: ColumnType) -> None:
        self._run(
            f"ALTER TABLE {self.quote(table)} ADD COLUMN {self.quote(column)} "
            f"{self.type_names[column_type]}"
        )

    def drop_column(self, table: str, column: str) -> None:
        self._run(f"ALTER TABLE {self.quote(table)} DROP COLUMN {self.quote(column)}")

    def rename_column(self, table: str, column: str, new: str) -> None:
        self._run(
            f"ALTER TABLE {self.quote(table)} RENAME COLUMN {self.quote(column)} "
            f"TO {self.quote(new)}"
        )

    def fill_column(self, table: str, column: str, value: Value) -> None:
        self._run(
            f"UPDATE {self.quote(table)} SET {self.quote(column)} = {self.placeholder}", (value,)
        )

    def has_rows(self, table: str, where: tuple[str, Value] | None = None) -> bool:
        sql, values = f"SELECT 1 FROM {self.quote(table)}", []
        if where is not None:
            column, value = where
            sql += f" WHERE {self.quote(column)} "
            sql += "IS NULL" if value is None else f"= {self.placeholder}"
            values = [] if value is None else [value]
        return self._run(f"{sql} LIMIT 1", values).fetchone() is not None

    def converter(self, column_type: ColumnType) -> Callable[[Any], Value]:
        return CONVERTERS[column_type]

    def upsert(self, table: Table, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        self._run_many(
            self._upsert_sql(table.name, table.primary_key, tuple(columns)),
            rows,
        )

    def delete(self, table: Table, keys: Sequence[Sequence[Value]]) -> None:
        self._run_many(self._delete_sql(table.name, table.primary_key), keys)

    def insert_own(self, table: str, rows: Sequence[Sequence[Value]]) -> None:
        if not rows:
            return
        columns = OWN_TABLES[table]
        conflict = " ON CONFLICT DO NOTHING" if table in OWN_KEYS else ""
        self._run_many(
            f"INSERT INTO {table} ({self._names(columns)}) VALUES ({self._places(columns)})"
            + conflict,
            rows,
        )

    def select_own(self, table: str, **where: Value) -> list[tuple[Any, ...]]:
        names = self._names(OWN_TABLES[table])
        return list(
            self._run(
                f"SELECT {names} FROM {table}{self._where(where)} ORDER BY {names}",
                tuple(where.values()),
            ).fetchall()
        )

    def delete_own(self, table: str, **where: Value) -> None:
        self._run(f"DELETE FROM {table}{self._where(where)}", tuple(where.values()))

    def schema_version(self) -> int:
        found = self._run("SELECT version FROM purgatory_schema").fetchone()
        return 0 if found is None else int(found[0])

    def raise_schema_version(self) -> None:
        self._run("UPDATE purgatory_schema SET version = version + 1")

    def waiting(
        self, topic: str, most: int, *, behind: Sequence[Value] = ()
    ) -> list[tuple[Any, ...]]:
        place = self._names(_PLACE)
        where = f"topic = {self.placeholder}"
        if behind:
            where += f" AND ({place}) > ({self._places(_PLACE)})"
        names = self._names(OWN_TABLES["purgatory_waiting"])
        return list(
            self._run(
                f"SELECT {names} FROM purgatory_waiting WHERE {where} ORDER BY {place} "
                f"LIMIT {most}",
                (topic, *behind),
            ).fetchall()
        )

    def waiting_count(self, topic: str, most: int, behind: int | None = None) -> int:
        where = f"topic = {self.placeholder}"
        values: tuple[Value, ...] = (topic,)
        if behind is not None:
            where += f" AND position > {self.placeholder}"
            values += (behind,)
        found = self._run(
            f"SELECT count(*) FROM (SELECT 1 FROM purgatory_waiting WHERE {where} LIMIT {most}) w",
            values,
        ).fetchone()
        return int(found[0])

    def waiting_unit(self, topic: str, unit: str) -> tuple[int, int | None, int | None]:
        found = self._run(
            "SELECT count(DISTINCT xoffset), max(xoffset), max(wanted) FROM purgatory_waiting "
            f"WHERE topic = {self.placeholder} AND unit = {self.placeholder}",
            (topic, unit),
        ).fetchone()
        return int(found[0]), found[1], found[2]

    def last_waiting(self, topic: str, partition: int) -> tuple[int, int, str | None] | None:
        found = self._run(
            "SELECT position, number, unit FROM purgatory_waiting "
            f"WHERE topic = {self.placeholder} AND partition = {self.placeholder} "
            f"ORDER BY {self.quote('offset')} DESC LIMIT 1",
            (topic, partition),
        ).fetchone()
        return None if found is None else (int(found[0]), int(found[1]), found[2])

    def first_waiting(self, topic: str, partition: int) -> int | None:
        found = self._run(
            f"SELECT min({self.quote('offset')}) FROM purgatory_waiting "
            f"WHERE topic = {self.placeholder} AND partition = {self.placeholder}",
            (topic, partition),
        ).fetchone()
        return None if found[0] is None else int(found[0])

    def delete_waiting(self, topic: str, places: Sequence[Sequence[Value]]) -> None:
        conditions = " AND ".join(f"{self.quote(name)} = {self.placeholder}" for name in _PLACE)
        self._run_many(
            f"DELETE FROM purgatory_waiting WHERE topic = {self.placeholder} AND {conditions}",
            [(topic, *place) for place in places],
        )

    @abstractmethod
    def is_lost(self, error: Exception) -> bool:
        """See `Target`."""

    def _where(self, where: Mapping[str, Value]) -> str:
        conditions = [f"{self.quote(name)} = {self.placeholder}" for name in where]
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def _names(self, names: Sequence[str] | Mapping[str, object]) -> str:
        return ", ".join(map(self.quote, names))

    def _places(self, columns: Sequence[str] | Mapping[str, object]) -> str:
        return ", ".join([self.placeholder] * len(columns))

    def _upsert_text(self, table: str, key: tuple[str, ...], columns: tuple[str, ...]) -> str:
        rest = [self.quote(name) for name in columns if name not in key]
        replaced = ", ".join(f"{name} = excluded.{name}" for name in rest)
        return (
            f"INSERT INTO {self.quote(table)} ({self._names(columns)}) "
            f"VALUES ({self._places(columns)}) ON CONFLICT ({self._names(key)}) DO "
            + (f"UPDATE SET {replaced}" if rest else "NOTHING")
        )

    def _delete_text(self, table: str, key: tuple[str, ...]) -> str:
        conditions = " AND ".join(f"{self.quote(name)} = {self.placeholder}" for name in key)
        return f"DELETE FROM {self.quote(table)} WHERE {conditions}"
