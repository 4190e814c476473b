"""What transactional producers that are alike share, beside what all producers do.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from typing import Any

from purgatory.kafka import EndTransaction, TopicPartition
from purgatory.simulation.distributions import sampler
from purgatory.simulation.engine import NS_PER_MS, NS_PER_US
from purgatory.simulation.messages import Batch
from purgatory.simulation.producer_group import ProducerGroup
from purgatory.simulation.scenario import TransactionsSection
from purgatory.simulation.sent_transactions import (
    SentTransaction,
    TransactionalBatch,
    TransactionCounts,
)
from purgatory.simulation.transaction_watch import TransactionWatch
from purgatory.simulation.wait_counts import Waits
from purgatory.trace.traced_transactions import TracedTransactions


class TransactionalGroup(ProducerGroup):
    """A group of producers that send in transactions.

    ``commit_waits`` are the times from the request to commit until its answer, ``whole_waits``
    those of committed transactions from their begin on.

    Args:
        settings: of their transactions.
        watch: follows these.
        traced: numbers them in the trace; None: none is written.
        arguments: as of `ProducerGroup`.
    """

    def __init__(
        self,
        settings: TransactionsSection,
        watch: TransactionWatch,
        traced: TracedTransactions | None,
        *arguments: Any,
    ) -> None:
        super().__init__(*arguments)
        self._traced = traced
        self.settings = settings
        self.watch = watch
        self.transaction_counts = TransactionCounts()
        self.commit_waits = Waits()
        self.whole_waits = Waits()
        self.zombie_ns = sampler(settings.zombie_ms, self.stream("pauses"), NS_PER_MS)
        self._zombie_chance = self.stream("zombies").random
        self._end_chance = self.stream("ends").random

    def transaction_of(self, batch: Batch) -> tuple[Any, ...]:
        """What the trace says of the transaction in which a batch is sent."""
        if self._traced is None or not isinstance(batch, TransactionalBatch):
            return ()
        transactional_id, producer = batch.transaction.transactional_id, batch.transaction.producer
        return (transactional_id, *self._traced.of_send(transactional_id, producer))

    def leader_of(self, place: TopicPartition) -> int:
        """The broker that leads a partition, or -1."""
        return self.controller.assignment_of(place).leader

    def still_after(self) -> int | None:
        """After how many of its requests a transaction's producer is to stand still, if it is."""
        if self._zombie_chance() >= self.settings.zombies:
            return None
        return 1 + int(self._zombie_chance() * self.settings.requests)

    def next_end(self) -> EndTransaction:
        """Whether the next transaction is to be committed or aborted."""
        is_aborted = self._end_chance() < self.settings.aborted
        return EndTransaction.ABORT if is_aborted else EndTransaction.COMMIT

    def lose(self, batch: Batch) -> None:
        """Note a batch that was given up."""
        self.counts.failed += len(batch.messages)
        if batch.sent_unsure:
            self.counts.unknown += len(batch.messages)

    def note_end(self, transaction: SentTransaction, how: EndTransaction, asked_ns: int) -> None:
        """Count a transaction that is ended as was asked, and its times."""
        if how is EndTransaction.ABORT:
            self.transaction_counts.aborted += 1
            return
        self.transaction_counts.committed += 1
        now_us = self.engine.now_ns() // NS_PER_US
        self.commit_waits.add(now_us - asked_ns // NS_PER_US)
        self.whole_waits.add(now_us - transaction.begun_ns // NS_PER_US)
