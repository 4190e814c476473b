"""Consumers of the rows of a run: the protocol, a fan-out, and a filter of topics."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from purgatory.trace.table_rows import CommitRow, OperationRow, ReadRow, SendRow, TransactionRow


class Tables(Protocol):
    """Receives the rows of a run."""

    def operation(self, row: OperationRow) -> None:
        """Take a row of the table of operations."""

    def send(self, row: SendRow) -> None:
        """Take a row of the table of sends."""

    def read(self, row: ReadRow) -> None:
        """Take a row of the table of reads."""

    def commit(self, row: CommitRow) -> None:
        """Take a row of the table of commits."""

    def transaction(self, row: TransactionRow) -> None:
        """Take a row of the table of transactions."""


class AllOf:
    """Passes each row to several tables, in order."""

    def __init__(self, tables: Sequence[Tables]) -> None:
        self._tables = tuple(tables)

    def operation(self, row: OperationRow) -> None:
        """Pass on a row of operations."""
        for table in self._tables:
            table.operation(row)

    def send(self, row: SendRow) -> None:
        """Pass on a row of sends."""
        for table in self._tables:
            table.send(row)

    def read(self, row: ReadRow) -> None:
        """Pass on a row of reads."""
        for table in self._tables:
            table.read(row)

    def commit(self, row: CommitRow) -> None:
        """Pass on a row of commits."""
        for table in self._tables:
            table.commit(row)

    def transaction(self, row: TransactionRow) -> None:
        """Pass on a row of transactions."""
        for table in self._tables:
            table.transaction(row)


class WithoutTopics:
    """Drops the rows of some topics: those that are published to, or each row would cause another.

    An operation is dropped if any of its keys is of such a topic.
    """

    def __init__(self, tables: Tables, topics: Collection[str]) -> None:
        self._tables = tables
        self._topics = frozenset(topics)

    def _is_dropped(self, topic: str) -> bool:
        return topic.partition("#")[0] in self._topics  # also if it was created again

    def operation(self, row: OperationRow) -> None:
        """Pass on a row of operations, or drop it."""
        topics = self._topics
        if not any(str(key).rpartition("-")[0] in topics for key in row.watch_keys or ()):
            self._tables.operation(row)

    def send(self, row: SendRow) -> None:
        """Pass on a row of sends, or drop it."""
        if not self._is_dropped(row.topic):
            self._tables.send(row)

    def read(self, row: ReadRow) -> None:
        """Pass on a row of reads, or drop it."""
        if not self._is_dropped(row.topic):
            self._tables.read(row)

    def commit(self, row: CommitRow) -> None:
        """Pass on a row of commits, or drop it."""
        if not self._is_dropped(row.topic):
            self._tables.commit(row)

    def transaction(self, row: TransactionRow) -> None:
        """Pass on a row of transactions."""
        self._tables.transaction(row)
