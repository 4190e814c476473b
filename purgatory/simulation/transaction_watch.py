"""Watches transactions in the logs and at readers, for what must never be.

It is told of each batch and each marker that falls below a high watermark, and of what readers are
given. What it finds is a violation unless part of a log that was committed is gone: by an unclean
election, or after damage, nothing is promised any more.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from purgatory.kafka import AbortedTransaction, EndTransaction, RecordBatch, TopicPartition
from purgatory.simulation.invariants import Invariants
from purgatory.simulation.sent_transactions import (
    SentTransaction,
    TransactionalBatch,
    TransformedMessage,
)

_COMMIT, _ABORT = EndTransaction.COMMIT, EndTransaction.ABORT


class TransactionWatch:
    """Follows all transactions of a run.

    ``is_void``: part of a log is gone that was committed, so nothing is checked any more.

    Args:
        invariants: is told of what must never be.
    """

    def __init__(self, invariants: Invariants) -> None:
        self.is_void = False
        self._invariants = invariants
        self._open: dict[tuple[TopicPartition, int], list[TransactionalBatch]] = {}
        self._incomplete: dict[SentTransaction, None] = {}
        self._transformed: dict[str, set[tuple[TopicPartition, int]]] = {}

    def stored(self, topic_partition: TopicPartition, batch: TransactionalBatch) -> None:
        """A batch is below the high watermark."""
        key = topic_partition, batch.transaction.producer.producer_id
        self._open.setdefault(key, []).append(batch)

    def marked(self, topic_partition: TopicPartition, marker: RecordBatch) -> None:
        """A marker is below the high watermark. O(batches that it ends)."""
        how = marker.control
        assert how is not None
        for batch in self._open.pop((topic_partition, marker.producer_id), ()):
            transaction = batch.transaction
            if transaction.how not in (None, how):
                self._violated(
                    "a transaction is committed in part",
                    f"{transaction}: {how.name} on {topic_partition}, which isn't so elsewhere",
                )
            if how is _COMMIT and transaction.asked is not _COMMIT:
                self._violated(
                    "a transaction is committed that nobody asked for",
                    f"{transaction} on {topic_partition}",
                )
            transaction.how = batch.how = how
            transaction.marked += 1
            if transaction.marked == transaction.batches:
                self._incomplete.pop(transaction, None)
            if how is _COMMIT:
                self._note_sources(batch)

    def _note_sources(self, batch: TransactionalBatch) -> None:
        name = batch.queue.books.name
        for message in batch.messages:
            if isinstance(message, TransformedMessage):
                sources = self._transformed.setdefault(name, set())
                if message.source in sources:
                    self._violated(
                        "a record was transformed twice",
                        f"by {name!r}: {message.source[0]} at {message.source[1]}",
                    )
                sources.add(message.source)

    def told(self, transaction: SentTransaction, how: EndTransaction) -> None:
        """A producer was told that its transaction is ended so."""
        transaction.told = how
        if transaction.how not in (None, how):
            self._violated("a producer was told a wrong end", f"{transaction}: {how.name}")
        if how is _COMMIT and transaction.marked < transaction.batches:
            self._incomplete[transaction] = None  # its markers are to follow

    def visible(
        self, batches: Iterable[RecordBatch], aborted: Iterable[AbortedTransaction]
    ) -> list[RecordBatch]:
        """Return the batches of an answer that a consumer takes that reads what is committed.

        It goes by what the answer says, as Kafka's does, and is checked by what is known here.
        """
        to_come = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        filtered: set[int] = set()
        taken = []
        for batch in batches:
            while to_come and to_come[-1].first_offset <= batch.last_offset:
                filtered.add(to_come.pop().producer_id)
            if batch.control is not None:
                filtered.discard(batch.producer_id)
                continue
            is_filtered = batch.transactional and batch.producer_id in filtered
            if not is_filtered:
                taken.append(batch)
            if isinstance(batch.tag, TransactionalBatch):
                self._check_read(batch.tag, is_filtered)
        return taken

    def _check_read(self, batch: TransactionalBatch, is_filtered: bool) -> None:
        where = f"{batch.transaction} on {batch.queue.topic_partition}"
        if is_filtered and batch.how is not _ABORT:
            self._violated("what is not aborted was passed over", where)
        if not is_filtered and batch.how is not _COMMIT:
            self._violated("what is not committed was read", where)

    def check_end(self) -> None:
        """Check, when all is settled, that each transaction is ended on all its partitions."""
        for topic_partition, producer_id in self._open:
            self._violated(
                "a transaction hangs", f"that of producer {producer_id} on {topic_partition}"
            )
        for transaction in self._incomplete:
            self._violated(
                "a transaction is committed in part",
                f"{transaction}: {transaction.marked} of {transaction.batches} batches are",
            )

    def check_transformed(self, group: str, read: int) -> None:
        """Check, when all is settled, that of each record read there is one that is made of it.

        Args:
            group: of producers.
            read: how many records its consumers read, each counted once.
        """
        made = len(self._transformed.get(group, ()))
        if made != read:
            self._violated("a record was not transformed", f"by {group!r}: {made} of {read} were")

    def _violated(self, rule: str, what: str) -> None:
        if not self.is_void:
            self._invariants.violated(rule, what)
