"""What must hold throughout a run, and how violations are found.

* No record that was acknowledged with acks=all is lost while a member of its in-sync set lives.
* The high watermark of a partition never goes back while one leader leads.
* Every request is answered exactly once.

`CommitWatch` reads each leader's log up to the high watermark, and so sees what no client sees:
each committed record, and which message it is. From that the `Ledger` counts, one message at a
time:

* duplicate: a copy of a message that is in the log already.
* reordering: a message whose first copy lies behind that of a later message of its producer in the
  same partition.
* lost: acknowledged (with acks=0: sent), and in no log at the end of the run.

`TransactionWatch` and `GroupWatch` check what readers and members get. What they find is a
violation unless part of a committed log is gone: by an unclean election, or after damage, nothing
is promised.

A violation may be found inside a callback of the purgatory, which contains whatever its callbacks
raise. So it is recorded, and raised by the run at the next millisecond.

Ground rules: everything runs on the engine's thread, the only one that moves a high watermark. The
library's own code pays nothing for the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from purgatory.kafka import (
    AbortedTransaction,
    EndTransaction,
    RecordBatch,
    ReplicaManager,
    TopicPartition,
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
"""How long after its timeout a request may be open before it counts as never answered."""


class InvariantViolation(AssertionError):
    """The model did what it must never do. The text names seed and virtual time, to replay it."""


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
        """End the run if something was noted.

        Raises:
            InvariantViolation: the first one noted.
        """
        if self.violation is not None:
            raise self.violation

    def violated(self, rule: str, what: str) -> None:
        """Record a violation; only the first one counts, the others may follow from it."""
        if self.violation is None:
            text = f"{rule}: {what} (seed {self._seed}, at {self._now_ns() / NS_PER_MS:.6f} ms)"
            self.violation = InvariantViolation(text)

    def acknowledged_without_commit(self, message: Message) -> None:
        """An acks=all acknowledgement arrived for a record that is in no committed log."""
        self.violated(
            "an acknowledged acks=all record is lost while an in-sync member lives",
            f"{_named(message)} was acknowledged, but is not committed",
        )

    def acknowledged_lost(self, message: Message, topic_partition: TopicPartition) -> None:
        """A clean election took away an acknowledged acks=all record."""
        self.violated(
            "an acknowledged acks=all record is lost while an in-sync member lives",
            f"{_named(message)} is not in the log of the new leader of {topic_partition}",
        )

    def high_watermark_back(
        self, topic_partition: TopicPartition, broker: int, epoch: int, before: int, after: int
    ) -> None:
        """A live leader's high watermark went back."""
        self.violated(
            "the high watermark went back on a live leader",
            f"{topic_partition} on broker {broker} in leader epoch {epoch}: "
            f"from {before} to {after}",
        )

    def answered_again(self, request: Request) -> None:
        """A request was answered a second time."""
        self.violated(
            "a request was answered more than once",
            f"{request!r} got answer number {request.answers}",
        )

    def never_answered(self, request: Request, broker: int) -> None:
        """A request is open long after its timeout."""
        waited_ms = (self._now_ns() - request.received_ns) / NS_PER_MS
        self.violated(
            "a request was never answered",
            f"{request!r} is open on broker {broker} for {waited_ms:.3f} ms, "
            f"with a timeout of {request.timeout_ms} ms",
        )


def _named(message: Message) -> str:
    queue = message.queue
    return f"record {message.sequence} of producer {queue.producer_number} in {queue.books.name!r}"


_ALL = -1


class Ledger:
    """Keeps the books of all groups.

    Args:
        invariants: told of an acks=all acknowledgement for what is not committed.
    """

    def __init__(self, invariants: Invariants) -> None:
        self._invariants = invariants

    def acknowledged(self, batch: Batch) -> list[Message]:
        """The producer was told that the batch is stored; with acks=0, it was sent.

        Returns:
            The messages of which it wasn't told before.
        """
        queue = batch.queue
        books = queue.books
        counts = books.counts
        news = [message for message in batch.messages if not message.acked]
        if books.acks == 0:
            counts.unanswered += len(news)
        else:
            counts.acknowledged += len(news)
        for message in news:
            message.acked = True
            if message.copies == 0:
                counts.lost += 1
                if books.acks == _ALL and not queue.unclean:
                    self._invariants.acknowledged_without_commit(message)
        return news

    def committed(self, batch: Batch) -> None:
        """A batch of messages is below the high watermark now."""
        queue = batch.queue
        counts = queue.books.counts
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

    def withdrawn(self, batch: Batch) -> list[Message]:
        """A batch that was below the high watermark is in the new leader's log no more.

        Returns:
            The messages of it that were acknowledged and have no other copy.
        """
        counts = batch.queue.books.counts
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
        """Return the batches of a response that a consumer takes that reads what is committed.

        It goes by what the response says, as Kafka's does, and is checked by what is known here.
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


_READ_BYTES = 2**62


@dataclass(slots=True, eq=False)
class _Watched:
    """What is known of one partition."""

    epoch: int = -1
    high_watermark: int = 0
    audited: int = 0
    log: Log | None = None


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
        """Another leader leads, or the same one again: compare its log with what was committed.

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


Term = tuple[int, ...]
"""A generation of one coordinator, in one time of its being that."""


class GroupWatch:
    """Follows one group.

    Args:
        group_id: which.
        invariants: is told of what must never be.
    """

    def __init__(self, group_id: str, invariants: Invariants) -> None:
        self._group_id = group_id
        self._invariants = invariants
        self._owners: dict[Term, dict[TopicPartition, str]] = {}
        self._commits: list[Mapping[TopicPartition, int]] = []
        self._acknowledged: dict[TopicPartition, int] = {}

    def given(self, who: str, term: Term, mine: Sequence[TopicPartition]) -> bool:
        """A member was given partitions: nobody else may have them in the same generation.

        Args:
            who: its instance id, which stays when it comes back, or else its member id.
            term: the generation.
            mine: what it was given.

        Returns:
            Whether it is the first one of that generation.
        """
        is_new = term not in self._owners
        owners = self._owners.setdefault(term, {})
        for place in mine:
            owner = owners.setdefault(place, who)
            if owner != who:
                self._invariants.violated(
                    "two members of a generation have the same partition",
                    f"{place} of group {self._group_id!r}: {owner} and {who}, "
                    f"generation {term[-1]}",
                )
        return is_new

    def commit_sent(self, offsets: Mapping[TopicPartition, int]) -> int:
        """A commit is under way; return its number."""
        self._commits.append(offsets)
        return len(self._commits) - 1

    def commit_acknowledged(self, number: int) -> None:
        """A commit was acknowledged: from now on it, or a later one, must be found."""
        for place in self._commits[number]:
            self._acknowledged[place] = max(number, self._acknowledged.get(place, -1))

    def acknowledged(self) -> Mapping[TopicPartition, int]:
        """Return the number of the last commit of each partition that was acknowledged."""
        return dict(self._acknowledged)

    def fetched(
        self,
        member_id: str,
        offsets: Mapping[TopicPartition, int],
        mine: Sequence[TopicPartition],
        acknowledged: Mapping[TopicPartition, int],
    ) -> None:
        """A member was told how far the group has read; ``acknowledged`` is from when it asked."""
        for place in mine:
            least = acknowledged.get(place)
            if least is None:
                continue
            permitted = {commit[place] for commit in self._commits[least:] if place in commit}
            if offsets.get(place) not in permitted:
                self._invariants.violated(
                    "an acknowledged commit of offsets is lost",
                    f"{place} of group {self._group_id!r}: {self._commits[least][place]} was "
                    f"acknowledged, {member_id} is told {offsets.get(place)}",
                )
