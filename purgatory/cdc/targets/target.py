"""Targets: a connection to a database with transactions, tables, and apply's own tables.

A target is used by one thread. `Target` has the SQL that SQLite and PostgreSQL share. The own
tables are

    purgatory_offsets     topic, partition, next_offset: records below it were applied
    purgatory_quarantine  topic, partition, offset, reason, detail, value
    purgatory_pending     topic, partition, offset, key, value, and its place: read, but records
                          before it are missing (`apply.pending`)
    purgatory_tables      name, source: which source's table each table belongs to
    purgatory_schema      id, version: incremented by each schema change that is applied
    purgatory_places      topic, partition, server, place, newest_ms: how far a log was read that
                          may have changes twice (`apply.repeats`)
    purgatory_shapes      source, columns, place, time_ms, snapshot, announced: what the last row
                          showed of its table (`apply.shapes`)
    purgatory_effects     topic, partition, offset, key, version, applied_us: the audit log
    purgatory_commits     topic, partition, offset, committed_us: the audit log
    purgatory_reads       topic, partition, offset, poll, value_id, read_us: the audit log
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from purgatory.cdc.column_types import CONVERTERS, ColumnType, Value
from purgatory.cdc.quarantine import InvalidChangeError

OWN_TABLES: Mapping[str, Mapping[str, str]] = {
    "purgatory_offsets": {"topic": "text", "partition": "int", "next_offset": "bigint"},
    "purgatory_quarantine": {
        "topic": "text",
        "partition": "int",
        "offset": "bigint",
        "reason": "text",
        "detail": "text",
        "value": "binary",
    },
    "purgatory_pending": {
        "topic": "text",
        "position": "bigint",
        "number": "bigint",
        "partition": "int",
        "offset": "bigint",
        "txn_group": "text",
        "xoffset": "bigint",
        "expected": "bigint",
        "key": "binary",
        "value": "binary",
    },
    "purgatory_tables": {"name": "text", "source": "text"},
    "purgatory_schema": {"id": "int", "version": "bigint"},
    "purgatory_places": {
        "topic": "text",
        "partition": "int",
        "server": "text",
        "place": "text",
        "newest_ms": "bigint",
    },
    "purgatory_shapes": {
        "source": "text",
        "columns": "text",
        "place": "text",
        "time_ms": "bigint",
        "snapshot": "text",
        "announced": "text",
    },
    "purgatory_effects": {
        "topic": "text",
        "partition": "int",
        "offset": "bigint",
        "key": "bigint",
        "version": "bigint",
        "applied_us": "bigint",
    },
    "purgatory_commits": {
        "topic": "text",
        "partition": "int",
        "offset": "bigint",
        "committed_us": "bigint",
    },
    "purgatory_reads": {
        "topic": "text",
        "partition": "int",
        "offset": "bigint",
        "poll": "bigint",
        "value_id": "bigint",
        "read_us": "bigint",
    },
}
"""The columns of the target's own tables, and their types."""

OWN_KEYS: Mapping[str, tuple[str, ...]] = {
    "purgatory_offsets": ("topic", "partition"),
    "purgatory_pending": ("topic", "position", "number", "partition", "offset"),
    "purgatory_tables": ("name",),
    "purgatory_schema": ("id",),
    "purgatory_places": ("topic", "partition", "server"),
    "purgatory_shapes": ("source",),
}
"""Their primary keys. Those without may have a row twice, for the audit to find."""

PREFIX = "purgatory_"
"""No table of the source may have a name that begins so."""


@dataclass(frozen=True)
class Table:
    """A table in the target's catalog."""

    name: str
    columns: Mapping[str, ColumnType]
    primary_key: tuple[str, ...]


_METADATA_TYPES = {
    "text": ColumnType.TEXT,
    "int": ColumnType.BIGINT,
    "bigint": ColumnType.BIGINT,
    "binary": ColumnType.BINARY,
}
_SORT_KEY = ("position", "number", "partition", "offset")
_INDEXES = {
    "purgatory_pending_group": ("topic", "txn_group", "xoffset", "expected"),
    "purgatory_pending_partition": ("topic", "partition", "offset"),
}
"""Indexes of purgatory_pending, beside its primary key."""


class Target(ABC):
    """One connection to a database, whose driver must not begin transactions itself.

    Every method raises the driver's errors, which `invalid_change` and `is_connection_error`
    classify.
    """

    driver_error: ClassVar[type[Exception]]
    """The base class of the driver's errors."""
    begin = "BEGIN"
    placeholder = "?"
    lock_row = ""
    """Follows a SELECT to lock its row until the transaction's end."""
    reserved: ClassVar[tuple[str, ...]] = (PREFIX,)
    """The prefix that no table's name may have."""
    type_names: ClassVar[Mapping[ColumnType, str]]

    def __init__(self) -> None:
        self._in_transaction = False
        self._upsert_sql = cache(self._upsert_text)
        self._delete_sql = cache(self._delete_text)

    # Each database has its own way for these.

    @abstractmethod
    def close(self) -> None:
        """Close the connection; an open transaction is rolled back."""

    @abstractmethod
    def schema_lock(self) -> None:
        """Within a transaction: no other one may create or alter tables until its end."""

    @abstractmethod
    def table(self, name: str) -> Table | None:
        """A table in the catalog; None if there is none."""

    @abstractmethod
    def name_fits(self, name: str) -> bool:
        """Whether a name is valid for a table or a column."""

    def column_fits(self, name: str) -> bool:
        """Whether a name is valid for a column."""
        return self.name_fits(name)

    @abstractmethod
    def fold_name(self, name: str) -> str:
        """The normalized name: equal for all names that the database treats as equal."""

    @abstractmethod
    def invalid_change(self, error: Exception) -> InvalidChangeError | None:
        """The reason why the database refused the values; None if the error has another cause."""

    @abstractmethod
    def is_connection_error(self, error: Exception) -> bool:
        """Whether a retry on a new connection may succeed: the error is of the connection, the
        server, or a conflict of two transactions."""

    @abstractmethod
    def _run(self, sql: str, values: Sequence[Value] = ()) -> Any:
        """Execute a statement, and return its cursor."""

    @abstractmethod
    def _run_many(self, sql: str, rows: Sequence[Sequence[Value]]) -> None:
        """Execute a statement once for each row, in order."""

    def quote(self, name: str) -> str:
        """A name in SQL."""
        return '"' + name.replace('"', '""') + '"'

    def converter(self, column_type: ColumnType) -> Callable[[Any], Value]:
        """The converter of JSON values, except null, to a column; raises InvalidChangeError."""
        return CONVERTERS[column_type]

    def _table_options(self, table: Table) -> str:
        return ""

    # Transactions.

    def prepare(self) -> None:
        """Create the own tables that are missing."""
        with self.transaction():
            self.schema_lock()
            for name, columns in OWN_TABLES.items():
                types = {column: _METADATA_TYPES[kind] for column, kind in columns.items()}
                self.create_table(Table(name, types, OWN_KEYS.get(name, ())))
            for name, indexed in _INDEXES.items():
                self._run(
                    f"CREATE INDEX IF NOT EXISTS {name} ON purgatory_pending "
                    f"({self._names(indexed)})"
                )
            self.insert_own("purgatory_schema", [(0, 0)])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end of the block, or roll back if it raises; within another transaction,
        a savepoint."""
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
            try:
                self._run("ROLLBACK")
            except Exception as error:
                if not self.is_connection_error(error):
                    raise
            raise
        finally:
            self._in_transaction = False

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Within a transaction: undo the block if it raises."""
        self._run("SAVEPOINT purgatory")
        try:
            yield
        except Exception as error:
            if not self.is_connection_error(error):
                self._run("ROLLBACK TO SAVEPOINT purgatory")
                self._run("RELEASE SAVEPOINT purgatory")
            raise
        self._run("RELEASE SAVEPOINT purgatory")

    def lock_offset(self, topic: str, partition: int) -> int:
        """Within a transaction: lock and return the next offset of a partition, 0 at first."""
        self.insert_own("purgatory_offsets", [(topic, partition, 0)])
        row = self._run(
            f"SELECT next_offset FROM purgatory_offsets WHERE topic = {self.placeholder} "
            f"AND partition = {self.placeholder}{self.lock_row}",
            (topic, partition),
        ).fetchone()
        return int(row[0])

    def store_offset(self, topic: str, partition: int, next_offset: int) -> None:
        """Store the next offset of a partition."""
        self._run(
            f"UPDATE purgatory_offsets SET next_offset = {self.placeholder} "
            f"WHERE topic = {self.placeholder} AND partition = {self.placeholder}",
            (next_offset, topic, partition),
        )

    # Tables and rows.

    def create_table(self, table: Table) -> None:
        """Create a table if it does not exist."""
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

    def drop_table(self, table: str) -> None:
        self._run(f"DROP TABLE {self.quote(table)}")

    def rename_table(self, table: str, new: str) -> None:
        self._run(f"ALTER TABLE {self.quote(table)} RENAME TO {self.quote(new)}")

    def clear_table(self, table: str) -> None:
        """Delete all rows. TRUNCATE would show an empty table to transactions that began before."""
        self._run(f"DELETE FROM {self.quote(table)}")

    def add_column(self, table: str, column: str, column_type: ColumnType) -> None:
        """Add a column, which is null in existing rows."""
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

    def has_rows(self, table: str) -> bool:
        """Whether a table has a row."""
        return self._run(f"SELECT 1 FROM {self.quote(table)} LIMIT 1").fetchone() is not None

    def upsert(self, table: Table, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        """Insert rows, in this order, or update these columns where the primary key exists."""
        self._run_many(self._upsert_sql(table.name, table.primary_key, tuple(columns)), rows)

    def delete(self, table: Table, keys: Sequence[Sequence[Value]]) -> None:
        """Delete the rows with these primary keys, if they exist."""
        self._run_many(self._delete_sql(table.name, table.primary_key), keys)

    # The own tables.

    def insert_own(self, table: str, rows: Sequence[Sequence[Value]]) -> None:
        """Insert rows, in the order of the columns; existing rows stay."""
        if not rows:
            return
        columns = OWN_TABLES[table]
        conflict = " ON CONFLICT DO NOTHING" if table in OWN_KEYS else ""
        self._run_many(
            f"INSERT INTO {table} ({self._names(columns)}) VALUES ({self._placeholders(columns)})"
            + conflict,
            rows,
        )

    def select_own(self, table: str, **where: Value) -> list[tuple[Any, ...]]:
        """The rows with these values, in the order of the columns, and sorted by them."""
        names = self._names(OWN_TABLES[table])
        return list(
            self._run(
                f"SELECT {names} FROM {table}{self._where(where)} ORDER BY {names}",
                tuple(where.values()),
            ).fetchall()
        )

    def delete_own(self, table: str, **where: Value) -> None:
        """Delete the rows with these values."""
        self._run(f"DELETE FROM {table}{self._where(where)}", tuple(where.values()))

    def schema_version(self) -> int:
        """The number of schema changes that were applied."""
        row = self._run("SELECT version FROM purgatory_schema").fetchone()
        return 0 if row is None else int(row[0])

    def raise_schema_version(self) -> None:
        """Increment the number of schema changes."""
        self._run("UPDATE purgatory_schema SET version = version + 1")

    def pending(
        self, topic: str, limit: int, *, after: Sequence[Value] = ()
    ) -> list[tuple[Any, ...]]:
        """The first pending records of a topic by their sort keys, ``limit`` at most.

        Args:
            after: return only those behind this key (position, number, partition, offset).
        """
        sort_key = self._names(_SORT_KEY)
        where = f"topic = {self.placeholder}"
        if after:
            where += f" AND ({sort_key}) > ({self._placeholders(_SORT_KEY)})"
        names = self._names(OWN_TABLES["purgatory_pending"])
        return list(
            self._run(
                f"SELECT {names} FROM purgatory_pending WHERE {where} ORDER BY {sort_key} "
                f"LIMIT {limit}",
                (topic, *after),
            ).fetchall()
        )

    def pending_count(self, topic: str, limit: int, after: int | None = None) -> int:
        """The number of pending records, behind a position if given; ``limit`` at most."""
        where = f"topic = {self.placeholder}"
        values: tuple[Value, ...] = (topic,)
        if after is not None:
            where += f" AND position > {self.placeholder}"
            values += (after,)
        row = self._run(
            f"SELECT count(*) FROM (SELECT 1 FROM purgatory_pending WHERE {where} LIMIT {limit}) w",
            values,
        ).fetchone()
        return int(row[0])

    def pending_group(self, topic: str, group: str) -> tuple[int, int | None, int | None]:
        """A group's count of distinct xoffsets, the highest of them, and `expected`."""
        row = self._run(
            "SELECT count(DISTINCT xoffset), max(xoffset), max(expected) FROM purgatory_pending "
            f"WHERE topic = {self.placeholder} AND txn_group = {self.placeholder}",
            (topic, group),
        ).fetchone()
        return int(row[0]), row[1], row[2]

    def last_pending(self, topic: str, partition: int) -> tuple[int, int, str | None] | None:
        """Position, number and group of a partition's last pending record, if any."""
        row = self._run(
            "SELECT position, number, txn_group FROM purgatory_pending "
            f"WHERE topic = {self.placeholder} AND partition = {self.placeholder} "
            f"ORDER BY {self.quote('offset')} DESC LIMIT 1",
            (topic, partition),
        ).fetchone()
        return None if row is None else (int(row[0]), int(row[1]), row[2])

    def first_pending(self, topic: str, partition: int) -> int | None:
        """The offset of a partition's first pending record, if any."""
        row = self._run(
            f"SELECT min({self.quote('offset')}) FROM purgatory_pending "
            f"WHERE topic = {self.placeholder} AND partition = {self.placeholder}",
            (topic, partition),
        ).fetchone()
        return None if row[0] is None else int(row[0])

    def delete_pending(self, topic: str, keys: Sequence[Sequence[Value]]) -> None:
        """Delete the pending records with these keys (position, number, partition, offset)."""
        conditions = " AND ".join(f"{self.quote(name)} = {self.placeholder}" for name in _SORT_KEY)
        self._run_many(
            f"DELETE FROM purgatory_pending WHERE topic = {self.placeholder} AND {conditions}",
            [(topic, *sort_key) for sort_key in keys],
        )

    def _where(self, where: Mapping[str, Value]) -> str:
        conditions = [f"{self.quote(name)} = {self.placeholder}" for name in where]
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def _names(self, names: Sequence[str] | Mapping[str, object]) -> str:
        return ", ".join(map(self.quote, names))

    def _placeholders(self, columns: Sequence[str] | Mapping[str, object]) -> str:
        return ", ".join([self.placeholder] * len(columns))

    def _upsert_text(self, table: str, key: tuple[str, ...], columns: tuple[str, ...]) -> str:
        rest = [self.quote(name) for name in columns if name not in key]
        replaced = ", ".join(f"{name} = excluded.{name}" for name in rest)
        return (
            f"INSERT INTO {self.quote(table)} ({self._names(columns)}) "
            f"VALUES ({self._placeholders(columns)}) ON CONFLICT ({self._names(key)}) DO "
            + (f"UPDATE SET {replaced}" if rest else "NOTHING")
        )

    def _delete_text(self, table: str, key: tuple[str, ...]) -> str:
        conditions = " AND ".join(f"{self.quote(name)} = {self.placeholder}" for name in key)
        return f"DELETE FROM {self.quote(table)} WHERE {conditions}"
