"""What `apply` needs of a database: transactions, tables, and the purgatory's own tables.

A target is one connection, used by one thread. Its own tables are

    purgatory_offsets     topic, partition, next_offset: what is below was applied
    purgatory_quarantine  topic, partition, offset, reason, detail, value
    purgatory_pending     topic, partition, offset, key, value: read, of an unfinished transaction
    purgatory_tables      name, source: which source's table each table stands for
    purgatory_effects     topic, partition, offset, key, version, applied_us: for the audit
    purgatory_commits     topic, partition, offset, committed_us: for the audit
    purgatory_reads       topic, partition, offset, poll, value_id, read_us: for the audit
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from purgatory.changes.column_types import ColumnType, Value
from purgatory.changes.errors import BadChangeError

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
        "partition": "int",
        "offset": "bigint",
        "key": "binary",
        "value": "binary",
    },
    "purgatory_tables": {"name": "text", "source": "text"},
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
    "purgatory_pending": ("topic", "partition", "offset"),
    "purgatory_tables": ("name",),
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
        """Commit at the end of the block, or roll back if it raises."""

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

    def add_column(self, table: str, column: str, column_type: ColumnType) -> None:
        """Add a column to a table; it is null in the rows that are there."""

    def converter(self, column_type: ColumnType) -> Callable[[Any], Value]:
        """What makes a value of a column of one that is not null; raises BadChangeError."""

    def name_fits(self, name: str) -> bool:
        """Whether a table or a column can have this name."""

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

    def refusal(self, error: Exception) -> BadChangeError | None:
        """What an error says of the values that were given; None if they are not to blame."""

    def is_lost(self, error: Exception) -> bool:
        """Whether an error is of the connection, of the server or of two transactions in each
        other's way: then the same may succeed later, on a new connection."""
