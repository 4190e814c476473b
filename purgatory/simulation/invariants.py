"""What must hold throughout a run, and how violations are found.

* No record that was acknowledged with acks=all is lost while a member of its in-sync set lives.
* The high watermark of a partition never goes back while one leader leads.
* Every request is answered exactly once.

`CommitWatch` reads each leader's log up to the high watermark, and so knows each committed record
and its message, which no client does. From that the `Ledger` counts messages:

* duplicate: a copy of a message that is in the log already.
* reordering: a message whose first copy lies behind that of a later message of its producer in the
  same partition.
* lost: acknowledged (with acks=0: sent), and in no log at the end of the run.

`TransactionWatch` and `GroupWatch` check what consumers and members get, unless part of a committed
log is lost by an unclean election or damage, when there are no guarantees.

A violation may be found inside a callback of the purgatory, which catches all exceptions. So it is
recorded, and the run raises it at the next millisecond.

Ground rules: everything runs on the engine's thread, the only one that moves a high watermark. The
library's own code pays nothing for the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from purgatory.kafka import (
    AbortedTransaction,
    RecordBatch,
    ReplicaManager,
    TopicPartition,
    TransactionResult,
)
from purgatory.kafka.log.log import Log
from purgatory.simulation.engine import NS_PER_MS
from purgatory.simulation.messages import (
    Batch,
    Message,
    SentTransaction,
    TransactionalBatch,
    TransformedMessage,
)
from purgatory.simulation.network import Request

OVERDUE_MS = 1_000
"""How long after its timeout a request may be open before its response counts as missing."""


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


_COMMIT, _ABORT = TransactionResult.COMMIT, TransactionResult.ABORT


class TransactionWatch:
    """Checks all transactions of a run.

    ``is_void``: part of a committed log is lost, so nothing is checked any more.
    """

    def __init__(self, invariants: Invariants) -> None:
        self.is_void = False
        self._invariants = invariants
        self._open: dict[tuple[TopicPartition, int], list[TransactionalBatch]] = {}
        self._incomplete: dict[SentTransaction, None] = {}
        self._transformed: dict[str, set[tuple[TopicPartition, int]]] = {}

    def record_batch(self, topic_partition: TopicPartition, batch: TransactionalBatch) -> None:
        """Record that a batch is below the high watermark."""
        key = topic_partition, batch.transaction.producer.producer_id
        self._open.setdefault(key, []).append(batch)

    def record_marker(self, topic_partition: TopicPartition, marker: RecordBatch) -> None:
        """Record that a marker is below the high watermark. O(its batches)."""
        result = marker.control
        assert result is not None
        for batch in self._open.pop((topic_partition, marker.producer_id), ()):
            transaction = batch.transaction
            if transaction.logged_result not in (None, result):
                self._record_violation(
                    "a transaction is committed in part",
                    f"{transaction}: {result.name} on {topic_partition} alone",
                )
            if result is _COMMIT and transaction.requested_result is not _COMMIT:
                self._record_violation(
                    "a transaction is committed without a request",
                    f"{transaction} on {topic_partition}",
                )
            transaction.logged_result = batch.result = result
            transaction.marked_batches += 1
            if transaction.marked_batches == transaction.batches:
                self._incomplete.pop(transaction, None)
            if result is _COMMIT:
                self._record_sources(batch)

    def _record_sources(self, batch: TransactionalBatch) -> None:
        name = batch.queue.totals.name
        for message in batch.messages:
            if isinstance(message, TransformedMessage):
                sources = self._transformed.setdefault(name, set())
                if message.source in sources:
                    self._record_violation(
                        "a record was transformed twice",
                        f"by {name!r}: {message.source[0]} at {message.source[1]}",
                    )
                sources.add(message.source)

    def record_end_response(self, transaction: SentTransaction, result: TransactionResult) -> None:
        """Record the result that the coordinator responded to the producer."""
        transaction.reported_result = result
        if transaction.logged_result not in (None, result):
            self._record_violation("a producer got a wrong result", f"{transaction}: {result.name}")
        if result is _COMMIT and transaction.marked_batches < transaction.batches:
            self._incomplete[transaction] = None  # its markers are to follow

    def visible_batches(
        self, batches: Iterable[RecordBatch], aborted: Iterable[AbortedTransaction]
    ) -> list[RecordBatch]:
        """Return the batches of a response that a read_committed consumer reads.

        Filters by the response's aborted transactions, as Kafka's consumer does, and checks the
        batches' actual results.
        """
        pending = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        filtered: set[int] = set()
        visible_batches = []
        for batch in batches:
            while pending and pending[-1].first_offset <= batch.last_offset:
                filtered.add(pending.pop().producer_id)
            if batch.control is not None:
                filtered.discard(batch.producer_id)
                continue
            is_aborted = batch.transactional and batch.producer_id in filtered
            if not is_aborted:
                visible_batches.append(batch)
            if isinstance(batch.tag, TransactionalBatch):
                self._check_read(batch.tag, is_aborted)
        return visible_batches

    def _check_read(self, batch: TransactionalBatch, is_aborted: bool) -> None:
        where = f"{batch.transaction} on {batch.queue.topic_partition}"
        if is_aborted and batch.result is not _ABORT:
            self._record_violation("a batch that is not aborted was skipped", where)
        if not is_aborted and batch.result is not _COMMIT:
            self._record_violation("a batch that is not committed was read", where)

    def check_end(self) -> None:
        """Check at the end that each transaction has ended on all its partitions."""
        for topic_partition, producer_id in self._open:
            self._record_violation(
                "a transaction hangs", f"that of producer {producer_id} on {topic_partition}"
            )
        for transaction in self._incomplete:
            self._record_violation(
                "a transaction is committed in part",
                f"{transaction}: {transaction.marked_batches} of {transaction.batches} batches are",
            )

    def check_transformations(self, group: str, read: int) -> None:
        """Check at the end that each record read was transformed.

        Args:
            group: of producers.
            read: how many distinct records its consumers read.
        """
        made = len(self._transformed.get(group, ()))
        if made != read:
            self._record_violation(
                "a record was not transformed", f"by {group!r}: {made} of {read} were"
            )

    def _record_violation(self, rule: str, description: str) -> None:
        if not self.is_void:
            self._invariants.record_violation(rule, description)


_READ_BYTES = 2**62


@dataclass(slots=True, eq=False)
class _PartitionProgress:
    """How far one partition has been read, and of which leader."""

    epoch: int = -1
    high_watermark: int = 0
    read_offset: int = 0
    log: Log | None = None


class CommitWatch:
    """Reads each committed batch once, for the ledger and the checks of transactions."""

    def __init__(
        self, ledger: Ledger, invariants: Invariants, transactions: TransactionWatch
    ) -> None:
        self._ledger = ledger
        self._transactions = transactions
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
                continue  # it is the leader's, since each election is recorded
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
            return  # a former leader that does not know of its successor yet
        if epoch == progress.epoch and high_watermark < progress.high_watermark:
            self._invariants.record_high_watermark_decrease(
                topic_partition, broker, epoch, progress.high_watermark, high_watermark
            )
        progress.epoch, progress.high_watermark, progress.log = epoch, high_watermark, log
        if high_watermark > progress.read_offset:
            for batch in _batches(log, progress.read_offset, high_watermark):
                self._commit(topic_partition, batch)
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
        # Not beyond what was read: batches that the election commits are still to be read.
        progress.high_watermark = min(progress.read_offset, log.high_watermark)

    def read_offset(self, topic_partition: TopicPartition) -> int:
        """The offset up to which the partition was read."""
        progress = self._progress.get(topic_partition)
        return 0 if progress is None else progress.read_offset

    def _commit(self, topic_partition: TopicPartition, batch: RecordBatch) -> None:
        tag = batch.tag
        if isinstance(tag, Batch):
            self._ledger.record_committed(tag)
            if isinstance(tag, TransactionalBatch):
                self._transactions.record_batch(topic_partition, tag)
        elif batch.control is not None:
            self._transactions.record_marker(topic_partition, batch)

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
            if (
                existing is not None
                and existing.tag is batch.tag
                and existing.control is batch.control
            ):
                continue
            oldest_offset = min(oldest_offset, batch.base_offset)
            # A batch of a transaction, a coordinator's record, or a group's offsets are lost.
            if batch.transactional or not isinstance(batch.tag, Batch):
                self._transactions.is_void = True
            if not isinstance(batch.tag, Batch):
                continue
            lost = self._ledger.record_truncated(batch.tag)
            if clean and lost and batch.tag.queue.totals.acks == _ALL:
                self._invariants.record_lost(lost[0], topic_partition)
        progress.read_offset = oldest_offset


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


Term = tuple[int, ...]
"""A generation, of one process and leader epoch of a coordinator."""


class GroupWatch:
    """Checks the assignments and committed offsets of one group."""

    def __init__(self, group_id: str, invariants: Invariants) -> None:
        self._group_id = group_id
        self._invariants = invariants
        self._owners: dict[Term, dict[TopicPartition, str]] = {}
        self._commits: list[Mapping[TopicPartition, int]] = []
        self._acknowledged: dict[TopicPartition, int] = {}

    def record_assignment(
        self, owner_id: str, term: Term, partitions: Sequence[TopicPartition]
    ) -> bool:
        """Record a member's assignment; no other may have these partitions in the generation.

        Args:
            owner_id: its instance id, which is stable, or else its member id.
            term: the generation.
            partitions: what it was given.

        Returns:
            Whether it is the first one of that generation.
        """
        is_new = term not in self._owners
        owners = self._owners.setdefault(term, {})
        for topic_partition in partitions:
            owner = owners.setdefault(topic_partition, owner_id)
            if owner != owner_id:
                self._invariants.record_violation(
                    "two members of a generation have the same partition",
                    f"{topic_partition} of group {self._group_id!r}: {owner} and {owner_id}, "
                    f"generation {term[-1]}",
                )
        return is_new

    def record_commit(self, offsets: Mapping[TopicPartition, int]) -> int:
        """Record a commit that was sent; return its number."""
        self._commits.append(offsets)
        return len(self._commits) - 1

    def record_commit_response(self, number: int) -> None:
        """Record an acknowledgement: fetches must return this commit or a later one."""
        for topic_partition in self._commits[number]:
            self._acknowledged[topic_partition] = max(
                number, self._acknowledged.get(topic_partition, -1)
            )

    def acknowledged_commits(self) -> Mapping[TopicPartition, int]:
        """Return the number of the last commit of each partition that was acknowledged."""
        return dict(self._acknowledged)

    def check_fetched_offsets(
        self,
        member_id: str,
        offsets: Mapping[TopicPartition, int],
        partitions: Sequence[TopicPartition],
        acknowledged: Mapping[TopicPartition, int],
    ) -> None:
        """Check a member's fetched offsets; ``acknowledged`` is from the time of its request."""
        for topic_partition in partitions:
            min_offset = acknowledged.get(topic_partition)
            if min_offset is None:
                continue
            valid_offsets = {
                commit[topic_partition]
                for commit in self._commits[min_offset:]
                if topic_partition in commit
            }
            if offsets.get(topic_partition) not in valid_offsets:
                self._invariants.record_violation(
                    "an acknowledged commit of offsets is lost",
                    f"{topic_partition} of group {self._group_id!r}: "
                    f"{self._commits[min_offset][topic_partition]} was acknowledged, "
                    f"{member_id} got {offsets.get(topic_partition)}",
                )
