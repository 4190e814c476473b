"""Follows the high watermark of every partition, and tells the ledger what became committed.

It looks after each call that can move a high watermark, and reads the leader's log from where it
stopped. At an election it compares what it read with the new leader's log.

Ground rules: everything runs on the engine's thread, which is also the only one that moves a high
watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from purgatory.kafka import RecordBatch, ReplicaManager, TopicPartition
from purgatory.kafka.log.log import Log
from purgatory.simulation.invariants import Invariants
from purgatory.simulation.ledger import Ledger
from purgatory.simulation.messages import Batch
from purgatory.simulation.sent_transactions import TransactionalBatch
from purgatory.simulation.transaction_watch import TransactionWatch

_ALL = -1
_READ_BYTES = 2**62


class _Watched:
    """What is known of one partition."""

    __slots__ = ("audited", "epoch", "high_watermark", "log")

    def __init__(self) -> None:
        self.epoch = -1
        self.high_watermark = 0
        self.audited = 0
        self.log: Log | None = None


class CommitWatch:
    """Reads what is committed, once.

    Args:
        ledger: is told of each committed batch.
        invariants: is told when a high watermark goes back or a clean election loses records.
        transactions: is told of each committed batch of a transaction, and of each marker.
    """

    def __init__(
        self, ledger: Ledger, invariants: Invariants, transactions: TransactionWatch
    ) -> None:
        self._ledger = ledger
        self._transactions = transactions
        self._invariants = invariants
        self._watched: dict[TopicPartition, _Watched] = {}

    def look(
        self, broker: int, manager: ReplicaManager, topic_partitions: Iterable[TopicPartition]
    ) -> None:
        """Look at partitions of `broker`. O(partitions + batches newly committed)."""
        for topic_partition in topic_partitions:
            watched = self._watched.get(topic_partition)
            if watched is None:
                watched = self._watched[topic_partition] = _Watched()
            log = watched.log
            if log is not None and log.high_watermark == watched.high_watermark:
                continue  # it is the leader's, since each election is told
            partition = manager.partition(topic_partition)
            if partition is not None and partition.leader_id == broker:
                self._moved(topic_partition, watched, broker, partition.leader_epoch, partition.log)

    def _moved(
        self, topic_partition: TopicPartition, watched: _Watched, broker: int, epoch: int, log: Log
    ) -> None:
        """The high watermark, or who leads, is not what it was."""
        high_watermark = log.high_watermark
        if epoch < watched.epoch:
            return  # a deposed leader that does not know it yet: its word counts no more
        if epoch == watched.epoch and high_watermark < watched.high_watermark:
            self._invariants.high_watermark_back(
                topic_partition, broker, epoch, watched.high_watermark, high_watermark
            )
        watched.epoch, watched.high_watermark, watched.log = epoch, high_watermark, log
        if high_watermark > watched.audited:
            for batch in _batches(log, watched.audited, high_watermark):
                self._commit(topic_partition, batch)
            watched.audited = high_watermark

    def elected(
        self, topic_partition: TopicPartition, epoch: int, log: Log, *, clean: bool
    ) -> None:
        """Another leader leads, or the same one anew: compare its log with what was committed.

        Args:
            clean: whether it was a member of the in-sync set.
        """
        watched = self._watched.get(topic_partition)
        if watched is None:
            watched = self._watched[topic_partition] = _Watched()
        if watched.log is not None and watched.log is not log:
            self._compare(topic_partition, watched, log, clean)
        watched.epoch, watched.log = epoch, log
        # No further than it was read: what an election commits at once is still to be read.
        watched.high_watermark = min(watched.audited, log.high_watermark)

    def audited(self, topic_partition: TopicPartition) -> int:
        """How far the partition was read."""
        watched = self._watched.get(topic_partition)
        return 0 if watched is None else watched.audited

    def _commit(self, topic_partition: TopicPartition, batch: RecordBatch) -> None:
        tag = batch.tag
        if isinstance(tag, Batch):
            self._ledger.committed(tag)
            if isinstance(tag, TransactionalBatch):
                self._transactions.stored(topic_partition, tag)
        elif batch.control is not None:
            self._transactions.marked(topic_partition, batch)

    def _compare(
        self, topic_partition: TopicPartition, watched: _Watched, log: Log, clean: bool
    ) -> None:
        """Withdraw what was committed under the old leader and differs in the new one's log."""
        old = watched.log
        assert old is not None
        begin = max(old.start_offset, log.start_offset)
        mine = {batch.base_offset: batch for batch in _batches(log, begin, log.end_offset)}
        kept = watched.audited
        for batch in _batches(old, begin, watched.audited):
            other = mine.get(batch.base_offset)
            if other is not None and other.tag is batch.tag and other.control is batch.control:
                continue
            kept = min(kept, batch.base_offset)
            # What is gone of a transaction, of what is known of one, or of a group's offsets.
            if batch.transactional or not isinstance(batch.tag, Batch):
                self._transactions.is_void = True
            if not isinstance(batch.tag, Batch):
                continue
            lost = self._ledger.withdrawn(batch.tag)
            if clean and lost and batch.tag.queue.books.acks == _ALL:
                self._invariants.acknowledged_lost(lost[0], topic_partition)
        watched.audited = kept


def _batches(log: Log, begin: int, end: int) -> Iterator[RecordBatch]:
    """The batches of a log from `begin` to before `end`. A read stays within a segment."""
    offset = max(begin, log.start_offset)
    end = min(end, log.end_offset)
    while offset < end:
        batches = log.read(offset, _READ_BYTES, end)
        if not batches:
            return
        yield from batches
        offset = batches[-1].next_offset
