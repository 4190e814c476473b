"""The invariants of a run, and their checks.

* No record that was acknowledged with acks=all is lost while a member of its in-sync set lives.
* The high watermark of a partition never goes back while one leader leads.
* Every request gets exactly one response.

`CommitWatch` reads each leader's log up to the high watermark, and so knows each committed record
and its message, which no client does. The `Ledger` counts messages from that:

* duplicate: a copy of a message that is in the log already.
* reordering: a message whose first copy lies behind that of a later message of its producer in the
  same partition.
* lost: acknowledged (with acks=0: sent), and in no log at the end of the run.

A violation may be found inside a callback of the purgatory, which catches all exceptions. The
violation is therefore recorded, and the run raises it at the next millisecond.

Ground rules: everything runs on the engine's thread, the only one that moves a high watermark. The
library's own code pays nothing for the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from purgatory.kafka import RecordBatch, ReplicaManager, TopicPartition
from purgatory.kafka.log.log import Log
from purgatory.simulation.engine import NS_PER_MS
from purgatory.simulation.messages import Batch, Message
from purgatory.simulation.network import Request

OVERDUE_MS = 1_000
"""The time after a request's timeout at which its response counts as missing."""


class InvariantViolation(AssertionError):
    """An invariant does not hold. The text names seed and virtual time, to replay it."""


class Invariants:
    """Records the first violation of a run.

    Args:
        seed: the run's seed.
        now_ns: the run's clock.
    """

    def __init__(self, seed: int, now_ns: Callable[[], int]) -> None:
        self._seed = seed
        self._now_ns = now_ns
        self.violation: InvariantViolation | None = None
        self.checked: dict[str, int] = {"acknowledged": 0, "high_watermark": 0, "answers": 0}

    def raise_if_violated(self) -> None:
        """Raise the first violation, if there is one."""
        if self.violation is not None:
            raise self.violation

    def record_violation(self, rule: str, description: str) -> None:
        """Record a violation; only the first counts, since others may follow from it."""
        if self.violation is None:
            text = (
                f"{rule}: {description} (seed {self._seed}, at {self._now_ns() / NS_PER_MS:.6f} ms)"
            )
            self.violation = InvariantViolation(text)

    def record_uncommitted(self, message: Message) -> None:
        """An acks=all record was acknowledged that is in no committed log."""
        self.record_violation(
            "an acknowledged acks=all record is lost while an in-sync member lives",
            f"{_describe(message)} was acknowledged, but is not committed",
        )

    def record_lost(self, message: Message, topic_partition: TopicPartition) -> None:
        """A clean election lost an acknowledged acks=all record."""
        self.record_violation(
            "an acknowledged acks=all record is lost while an in-sync member lives",
            f"{_describe(message)} is not in the log of the new leader of {topic_partition}",
        )

    def record_high_watermark_decrease(
        self, topic_partition: TopicPartition, broker: int, epoch: int, before: int, after: int
    ) -> None:
        """Record that a live leader's high watermark decreased."""
        self.record_violation(
            "the high watermark went back on a live leader",
            f"{topic_partition} on broker {broker} in leader epoch {epoch}: "
            f"from {before} to {after}",
        )

    def record_duplicate_response(self, request: Request) -> None:
        """A request got a second response."""
        self.record_violation(
            "a request got more than one response",
            f"{request!r} got response number {request.response_count}",
        )

    def record_missing_response(self, request: Request, broker: int) -> None:
        """A request is open long after its timeout."""
        waited_ms = (self._now_ns() - request.received_ns) / NS_PER_MS
        self.record_violation(
            "a request got no response",
            f"{request!r} is open on broker {broker} for {waited_ms:.3f} ms, "
            f"with a timeout of {request.timeout_ms} ms",
        )


def _describe(message: Message) -> str:
    queue = message.queue
    return f"record {message.sequence} of producer {queue.producer_number} in {queue.totals.name!r}"


_ALL = -1


class Ledger:
    """Counts the records of all producer groups by their outcome."""

    def __init__(self, invariants: Invariants) -> None:
        self._invariants = invariants

    def record_acknowledged(self, batch: Batch) -> list[Message]:
        """Record that a batch was acknowledged; with acks=0, that it was sent.

        Returns:
            Its messages that were not acknowledged before.
        """
        queue = batch.queue
        totals = queue.totals
        counts = totals.counts
        messages = [message for message in batch.messages if not message.acked]
        if totals.acks == 0:
            counts.unanswered += len(messages)
        else:
            counts.acknowledged += len(messages)
        for message in messages:
            message.acked = True
            if message.copies == 0:
                counts.lost += 1
                if totals.acks == _ALL and not queue.unclean:
                    self._invariants.record_uncommitted(message)
        return messages

    def record_committed(self, batch: Batch) -> None:
        """Record that a batch is below the high watermark."""
        queue = batch.queue
        counts = queue.totals.counts
        for message in batch.messages:
            message.copies += 1
            if message.copies > 1:
                counts.duplicates += 1
                continue
            counts.committed += 1
            if message.acked:
                counts.lost -= 1
            if message.sequence < queue.highest_committed:
                counts.reorderings += 1
            else:
                queue.highest_committed = message.sequence

    def record_truncated(self, batch: Batch) -> list[Message]:
        """Record that a committed batch is not in the new leader's log.

        Returns:
            Its messages that were acknowledged and have no other copy.
        """
        counts = batch.queue.totals.counts
        batch.queue.unclean = True
        lost = []
        for message in batch.messages:
            message.copies -= 1
            if message.copies > 0:
                counts.duplicates -= 1
                continue
            counts.committed -= 1
            if message.acked:
                counts.lost += 1
                lost.append(message)
        return lost


_READ_BYTES = 2**62


@dataclass(slots=True, eq=False)
class _PartitionProgress:
    """The end of what was read of one partition, and its leader."""

    epoch: int = -1
    high_watermark: int = 0
    read_offset: int = 0
    log: Log | None = None


class CommitWatch:
    """Reads each committed batch once, for the ledger."""

    def __init__(self, ledger: Ledger, invariants: Invariants) -> None:
        self._ledger = ledger
        self._invariants = invariants
        self._progress: dict[TopicPartition, _PartitionProgress] = {}

    def observe_commits(
        self, broker: int, manager: ReplicaManager, topic_partitions: Iterable[TopicPartition]
    ) -> None:
        """Read newly committed batches of `broker`. O(partitions + batches)."""
        for topic_partition in topic_partitions:
            progress = self._progress.get(topic_partition)
            if progress is None:
                progress = self._progress[topic_partition] = _PartitionProgress()
            log = progress.log
            if log is not None and log.high_watermark == progress.high_watermark:
                continue  # the log is the leader's, since each election is recorded
            partition = manager.partition(topic_partition)
            if partition is not None and partition.leader_id == broker:
                self._read_new(
                    topic_partition, progress, broker, partition.leader_epoch, partition.log
                )

    def _read_new(
        self,
        topic_partition: TopicPartition,
        progress: _PartitionProgress,
        broker: int,
        epoch: int,
        log: Log,
    ) -> None:
        high_watermark = log.high_watermark
        if epoch < progress.epoch:
            return  # a former leader that has not learned of its successor
        if epoch == progress.epoch and high_watermark < progress.high_watermark:
            self._invariants.record_high_watermark_decrease(
                topic_partition, broker, epoch, progress.high_watermark, high_watermark
            )
        progress.epoch, progress.high_watermark, progress.log = epoch, high_watermark, log
        if high_watermark > progress.read_offset:
            for batch in _batches(log, progress.read_offset, high_watermark):
                self._ledger.record_committed(_messages_of(batch))
            progress.read_offset = high_watermark

    def record_election(
        self, topic_partition: TopicPartition, epoch: int, log: Log, *, clean: bool
    ) -> None:
        """Compare an elected leader's log with the committed records.

        Args:
            clean: whether the leader was in sync.
        """
        progress = self._progress.get(topic_partition)
        if progress is None:
            progress = self._progress[topic_partition] = _PartitionProgress()
        if progress.log is not None and progress.log is not log:
            self._compare_logs(topic_partition, progress, log, clean)
        progress.epoch, progress.log = epoch, log
        # At most the read offset: batches that the election commits are still to be read.
        progress.high_watermark = min(progress.read_offset, log.high_watermark)

    def _compare_logs(
        self, topic_partition: TopicPartition, progress: _PartitionProgress, log: Log, clean: bool
    ) -> None:
        """Record the batches committed under the old leader that the new one's log lacks."""
        old = progress.log
        assert old is not None
        begin = max(old.start_offset, log.start_offset)
        partitions = {batch.base_offset: batch for batch in _batches(log, begin, log.end_offset)}
        oldest_offset = progress.read_offset
        for batch in _batches(old, begin, progress.read_offset):
            existing = partitions.get(batch.base_offset)
            if existing is not None and existing.tag is batch.tag:
                continue
            oldest_offset = min(oldest_offset, batch.base_offset)
            sent = _messages_of(batch)
            lost = self._ledger.record_truncated(sent)
            if clean and lost and sent.queue.totals.acks == _ALL:
                self._invariants.record_lost(lost[0], topic_partition)
        progress.read_offset = oldest_offset


def _messages_of(batch: RecordBatch) -> Batch:
    """The messages that are a stored batch's tag."""
    assert isinstance(batch.tag, Batch), "producers alone append batches"
    return batch.tag


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
