"""What `apply` needs of a database: transactions, tables, and the purgatory's own tables.

A target is one connection, used by one thread. Its own tables are

    purgatory_offsets     topic, partition, next_offset: what is below was applied
    purgatory_quarantine  topic, partition, offset, reason, detail, value
    purgatory_waiting     topic, partition, offset, key, value, and its place: read, but something
                          before it is not there yet (`units`)
    purgatory_tables      name, source: which source's table each table stands for
    purgatory_columns     source, name, type: what the source calls the types of its columns
    purgatory_schema      id, version: grows by one with each change of a schema that is applied
    purgatory_effects     topic, partition, offset, key, version, applied_us: for the audit
    purgatory_commits     topic, partition, offset, committed_us: for the audit
    purgatory_reads       topic, partition, offset, poll, value_id, read_us: for the audit
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from purgatory.cdc.column_types import ColumnType, Value
from purgatory.cdc.errors import BadChangeError

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
    "purgatory_waiting": {
        "topic": "text",
        "position": "bigint",
        "number": "bigint",
        "partition": "int",
        "offset": "bigint",
        "unit": "text",
        "xoffset": "bigint",
        "wanted": "bigint",
        "key": "binary",
        "value": "binary",
    },
    "purgatory_tables": {"name": "text", "source": "text"},
    "purgatory_columns": {"source": "text", "name": "text", "type": "text"},
    "purgatory_schema": {"id": "int", "version": "bigint"},
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
"""The columns of the own tables, and their types."""

OWN_KEYS: Mapping[str, tuple[str, ...]] = {
    "purgatory_offsets": ("topic", "partition"),
    "purgatory_waiting": ("topic", "position", "number", "partition", "offset"),
    "purgatory_tables": ("name",),
    "purgatory_columns": ("source", "name"),
    "purgatory_schema": ("id",),
}
"""The primary keys of those that have one. The rest may have rows twice: that is what an audit is
to find."""

PREFIX = "purgatory_"
"""No table of a source may have such a name."""


@dataclass(frozen=True)
class Table:
    """A table of the target, as its catalogue has it."""

    name: str
    columns: Mapping[str, ColumnType]
    primary_key: tuple[str, ...]


class Target(Protocol):
    """One connection to a database.

    Every method raises what the driver raises; `refusal` and `is_lost` tell what it means.
    """

    @property
    def driver_error(self) -> type[Exception]:
        """What all errors of the driver derive from."""

    def close(self) -> None:
        """End the connection; an open transaction is rolled back."""

    def prepare(self) -> None:
        """Make the own tables that are missing."""

    def transaction(self) -> AbstractContextManager[None]:
        """Commit at the end of the block, or roll back if it raises; within another, it is part of
        that, undone by itself if it raises."""

    def savepoint(self) -> AbstractContextManager[None]:
        """Within a transaction: undo what the block did if it raises."""

    def schema_lock(self) -> None:
        """Within a transaction: let nobody else make or change tables until its end."""

    def lock_offset(self, topic: str, partition: int) -> int:
        """Within a transaction: the next offset of a partition, which nobody else may change until
        the transaction's end. 0 if nothing of it was applied."""

    def store_offset(self, topic: str, partition: int, next_offset: int) -> None:
        """Store the next offset of a partition."""

    def table(self, name: str) -> Table | None:
        """What the catalogue says of a table; None if there is none."""

    def create_table(self, table: Table) -> None:
        """Make a table."""

    def drop_table(self, table: str) -> None:
        """Drop a table."""

    def rename_table(self, table: str, new: str) -> None:
        """Give a table another name."""

    def clear_table(self, table: str) -> None:
        """Delete all rows, so that a reader sees all of them or none."""

    def add_column(self, table: str, column: str, column_type: ColumnType) -> None:
        """Add a column to a table; it is null in the rows that are there."""

    def drop_column(self, table: str, column: str) -> None:
        """Drop a column with what is in it."""

    def rename_column(self, table: str, column: str, new: str) -> None:
        """Give a column another name."""

    def fill_column(self, table: str, column: str, value: Value) -> None:
        """Write a value into a column of all rows."""

    def has_rows(self, table: str, where: tuple[str, Value] | None = None) -> bool:
        """Whether a table has any row; or any in which a column is null, or has this value."""

    def converter(self, column_type: ColumnType) -> Callable[[Any], Value]:
        """What makes a value of a column of one that is not null; raises BadChangeError."""

    def name_fits(self, name: str) -> bool:
        """Whether a table or a column can have this name."""

    def folded(self, name: str) -> str:
        """What is the same for all names that the database takes for one."""

    def upsert(self, table: Table, columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> None:
        """Insert rows, in this order, or replace these columns where the primary key is there."""

    def delete(self, table: Table, keys: Sequence[Sequence[Value]]) -> None:
        """Delete the rows with these primary keys; those that are not there are no matter."""

    def insert_own(self, table: str, rows: Sequence[Sequence[Value]]) -> None:
        """Insert rows into an own table, in the order of its columns; what is there stays."""

    def select_own(self, table: str, **where: Value) -> list[tuple[Any, ...]]:
        """The rows of an own table with these values, in the order of its columns and by them."""

    def delete_own(self, table: str, **where: Value) -> None:
        """Delete the rows of an own table with these values."""

    def schema_version(self) -> int:
        """How many changes of schemas were applied."""

    def raise_schema_version(self) -> None:
        """Count one more."""

    def waiting(
        self, topic: str, most: int, *, behind: Sequence[Value] = ()
    ) -> list[tuple[Any, ...]]:
        """The first records of a topic that wait, in the order of their places.

        Args:
            most: how many at most.
            behind: only those behind this place (position, number, partition, offset).
        """

    def waiting_count(self, topic: str, most: int, behind: int | None = None) -> int:
        """How many records of a topic wait, those behind a position if given; `most` at most."""

    def waiting_unit(self, topic: str, unit: str) -> tuple[int, int | None, int | None]:
        """How many different xoffsets of a unit wait, the highest of them, and `wanted`."""

    def last_waiting(self, topic: str, partition: int) -> tuple[int, int, str | None] | None:
        """Position, number and unit of the last record of a partition that waits, if any does."""

    def first_waiting(self, topic: str, partition: int) -> int | None:
        """The offset of the first record of a partition that waits, if any does."""

    def delete_waiting(self, topic: str, places: Sequence[Sequence[Value]]) -> None:
        """Delete what waits at these places (position, number, partition, offset)."""

    def refusal(self, error: Exception) -> BadChangeError | None:
        """What an error says of the values that were given; None if they are not to blame."""

    def is_lost(self, error: Exception) -> bool:
        """Whether an error is of the connection, of the server or of two transactions in each
        other's way: then the same may succeed later, on a new connection."""
