"""What a transaction waits for: its markers, its time to be up, another try.

Ground rules: each of them asks the transaction and tells the coordinator, on the thread that calls
both. Each is about the record that held when it began; when another holds, its wait is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from purgatory.core.operation import DelayedOperation
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.transactions.transaction import Transaction


class TransactionEvents(Protocol):
    """What the waits tell the coordinator."""

    def time_up(self, transaction: Transaction) -> None:
        """A transaction lasts too long, or a transactional id wasn't used for long."""

    def try_again(self, transaction: Transaction) -> None:
        """What couldn't be done for a transaction that is decided may be tried again."""


class DelayedForTransaction(DelayedOperation):
    """Waits until another record of a transaction holds, or its time is up."""

    def __init__(self, transaction: Transaction, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.transaction = transaction
        self._record = transaction.record

    def try_complete(self) -> bool:
        return self.transaction.record is not self._record and self.force_complete()


class DelayedMarkers(DelayedForTransaction):
    """Waits until the markers of a transaction are on all its partitions, and that is written.

    It is answered without an error also when the time is up: the end is decided.
    """

    def __init__(
        self, transaction: Transaction, delay_ms: int, respond: Callable[[ErrorCode], object]
    ) -> None:
        super().__init__(transaction, delay_ms)
        self._respond = respond

    def on_complete(self) -> None:
        self._respond(ErrorCode.NONE)


class DelayedDeadline(DelayedForTransaction):
    """Waits for the time of a transaction, or of a transactional id, to be up."""

    def __init__(self, transaction: Transaction, delay_ms: int, events: TransactionEvents) -> None:
        super().__init__(transaction, delay_ms)
        self._events = events

    def on_expiration(self) -> None:
        self._events.time_up(self.transaction)


class DelayedRetry(DelayedForTransaction):
    """Waits for a while before what failed is tried again."""

    def __init__(self, transaction: Transaction, delay_ms: int, events: TransactionEvents) -> None:
        super().__init__(transaction, delay_ms)
        self._events = events

    def on_expiration(self) -> None:
        self._events.try_again(self.transaction)
