"""Timeouts of transactions, after which they are aborted, and of transactional ids, which expire.

The purgatory `TransactionTimeout` has a transaction until its timeout, and a transactional id
without one until its expiration (`DelayedDeadline`).

Ground rules: those of `transaction_coordinator`. A wait is about the record that held when it
began, and ends when another record holds.
"""

from __future__ import annotations

from collections.abc import Callable

from purgatory.core.operation import DelayedOperation
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ClusterError, ErrorCode
from purgatory.kafka.transactions.transaction_metadata import (
    DECIDED,
    RespondCode,
    Transaction,
    TransactionConfig,
    TransactionRecord,
    TransactionState,
)
from purgatory.kafka.transactions.transaction_state_manager import TransactionStateManager

_log = Logger("purgatory.kafka")


class DelayedTransactionRequest(DelayedOperation):
    """Waits until a transaction has another record, or times out."""

    def __init__(self, transaction: Transaction, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.transaction = transaction
        self._record = transaction.record

    def try_complete(self) -> bool:
        return self.transaction.record is not self._record and self.force_complete()


class DelayedStep(DelayedTransactionRequest):
    """Waits for the time of a transaction's next step."""

    def __init__(
        self, transaction: Transaction, delay_ms: int, step: Callable[[Transaction], object]
    ) -> None:
        super().__init__(transaction, delay_ms)
        self._step = step

    def on_expiration(self) -> None:
        self._step(self.transaction)


class DelayedDeadline(DelayedStep):
    """Waits for the timeout of a transaction, or of a transactional id."""


class TransactionTimeouts:
    """The timeouts of one coordinator's transactions and transactional ids.

    Args:
        state_manager: the transactions and their records.
        config: the times, in milliseconds.
        purgatory: `TransactionTimeout`.
        now_ms: the time of day, as in the records.
        abort: aborts a transaction for the coordinator, or raises ClusterError.
        write: writes a record of a transaction.
    """

    def __init__(
        self,
        state_manager: TransactionStateManager,
        config: TransactionConfig,
        purgatory: DelayedOperationPurgatory,
        now_ms: Callable[[], int],
        abort: Callable[[Transaction, RespondCode], None],
        write: Callable[[Transaction, TransactionRecord, RespondCode], None],
    ) -> None:
        self._state_manager = state_manager
        self._config = config
        self._purgatory = purgatory
        self._now_ms = now_ms
        self._abort = abort
        self._write = write

    def check(self, transaction: Transaction) -> None:
        """End the wait for a timeout that belongs to a former record."""
        self._purgatory.check_and_complete(transaction.key)

    def start(self, transaction: Transaction) -> None:
        """Start the timeout that belongs to the state of a transaction."""
        record = transaction.record
        if record.state in DECIDED:
            return
        if record.state is TransactionState.ONGOING:
            # Clocks differ between brokers, and are set back.
            lasted_ms = max(0, self._now_ms() - record.start_ms)
            delay_ms = max(self._config.retry_ms, record.timeout_ms - lasted_ms)
        else:
            delay_ms = self._config.id_expiration_ms
        waiting = DelayedDeadline(transaction, delay_ms, self._expire)
        self._purgatory.try_complete_else_watch(waiting, [transaction.key])

    def _expire(self, transaction: Transaction) -> None:
        """Abort a transaction that has timed out; forget an expired transactional id."""
        if not self._state_manager.is_known(transaction):
            return
        if transaction.pending is not None:
            self.start(transaction)
            return
        if transaction.record.state is TransactionState.ONGOING:
            self._abort_expired(transaction)
        else:
            self._expire_id(transaction)

    def _abort_expired(self, transaction: Transaction) -> None:
        def decided(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE and self._state_manager.is_known(transaction):
                self.start(transaction)

        _log.info("transaction_timed_out", transactional_id=transaction.transactional_id)
        try:
            self._abort(transaction, decided)
        except ClusterError:  # logged already
            self.start(transaction)

    def _expire_id(self, transaction: Transaction) -> None:
        def stored(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self._state_manager.drop(transaction)
            elif self._state_manager.is_known(transaction):
                self.start(transaction)

        dead = transaction.record._replace(state=TransactionState.DEAD)
        self._write(transaction, dead, stored)
