"""A broker's copy of a partition: its log, its role, and what it does as a follower.

The controller numbers every change of leadership: a request with an older epoch is refused. As a
follower the replica copies what its leader has. It never truncates on its own at a change of
leader: what it has may be just what the new leader has. The response to its next fetch says where
the logs diverge, by the epochs of both. What it does as a leader is in `partition`.

Ground rules
------------
* ``_lock`` guards every field and the log. It is a leaf: no other lock is taken under it.
* Plain attributes may be read without the lock where one value alone is wanted.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from itertools import count

from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_EPOCH, UNKNOWN_OFFSET
from purgatory.kafka.log.log import Log, Segment
from purgatory.kafka.log.log_offsets import LogEnds, end_keys
from purgatory.kafka.log.record_batch import NO_LEADER_EPOCH, RecordBatch
from purgatory.kafka.replication.in_sync_replicas import InSyncReplicas
from purgatory.kafka.replication.requests import PartitionFetch, PartitionFetchResponse
from purgatory.kafka.topic_partition import TopicPartition

NO_LEADER = -1


def apply_response(log: Log, response: PartitionFetchResponse) -> bool:
    """Apply the leader's response; return False, without a change, for a retriable error.

    Raises:
        KafkaError: INVALID_RECORD, when the batches don't follow one another.
    """
    if response.error is not ErrorCode.NONE:
        return _truncate_to_leader(log, response)
    if response.diverging_epoch is not None:
        # Truncate to the last offset that both logs can share. If this log lacks the leader's
        # epoch, the next fetch goes back one more, until both have it.
        epoch, end_offset = response.diverging_epoch
        own = log.end_offset_for_epoch(epoch)
        if own != UNKNOWN_EPOCH:
            end_offset = min(end_offset, own.end_offset)
        log.truncate_to(min(end_offset, log.end_offset))
        return True
    batches = response.batches
    if batches and batches[0].base_offset < log.end_offset <= response.log_start_offset:
        # The leader deleted up to a point within a batch, and remembers no epoch from before it. So
        # this log's last batches may be others than the leader's were. All are deleted there.
        log.truncate_fully_and_start_at(log.end_offset)
    elif (
        batches
        and batches[0].record_count < batches[0].offset_count
        and batches[0].base_offset < log.end_offset
        and log.start_offset != log.end_offset
    ):
        # The leader compacted what lies there, which only one who is out of sync may have yet.
        log.truncate_to(batches[0].base_offset)
        if log.end_offset != batches[0].base_offset:
            return True  # this log was compacted, too, into other pieces: the next fetch finds one
    for batch in batches:
        log.append(batch)
    if response.high_watermark > log.high_watermark:
        log.update_high_watermark(response.high_watermark)
    if response.log_start_offset > log.start_offset:
        log.delete_up_to(min(response.log_start_offset, log.high_watermark))
    return True


def _truncate_to_leader(log: Log, response: PartitionFetchResponse) -> bool:
    """Out of the leader's range: cut off what is beyond its end, or begin at its start."""
    if response.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
        return False
    if 0 <= response.log_end_offset < log.end_offset:
        log.truncate_to(response.log_end_offset)
        return True
    if response.log_start_offset > log.end_offset:
        log.truncate_fully_and_start_at(response.log_start_offset)
        return True
    return False


class Replica:
    """The replica on broker ``broker_id``, as leader or follower.

    Public attributes, all to be read only: ``leader_id`` (-1 when unknown), ``leader_epoch``,
    ``leader_epoch_start_offset`` (where a leader's own epoch began, -1 on a follower),
    ``leader_term`` (the number of the term: another, higher one when this replica begins or ceases
    to lead; 0 before it ever did), ``log``, ``end_keys``.

    Args:
        topic_partition, broker_id: which replica.
        log: its log.
        min_insync_replicas: how many must be in sync for acks=all.
        terms: numbers the terms, from 1 on. Shared by all replicas of a broker, so that one that
            is stopped and comes back has none of its former terms again.

    Raises:
        ValueError: min_insync_replicas below 1.
    """

    __slots__ = (
        "_lock",
        "_log_ends",
        "_members",
        "_terms",
        "broker_id",
        "end_keys",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "leader_term",
        "log",
        "min_insync_replicas",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        broker_id: int,
        log: Log,
        min_insync_replicas: int = 1,
        terms: Iterator[int] | None = None,
    ) -> None:
        check_min_insync(topic_partition, min_insync_replicas)
        self.topic_partition = topic_partition
        self.broker_id = broker_id
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_LEADER_EPOCH
        self.leader_epoch_start_offset = UNKNOWN_OFFSET
        self.leader_term = 0
        self._terms = count(1) if terms is None else terms
        self.log = log
        self.end_keys = end_keys(topic_partition)
        self._log_ends = LogEnds(log)
        self.min_insync_replicas = min_insync_replicas
        self._members = InSyncReplicas(broker_id)
        self._lock = threading.Lock()

    # ---- looking

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads."""
        return self.leader_id == self.broker_id

    @property
    def replicas(self) -> tuple[int, ...]:
        """Who is assigned, in order."""
        return self._members.replicas

    @property
    def isr(self) -> tuple[int, ...]:
        """Who is in sync; empty on a follower."""
        return self._members.isr

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The in-sync set, with members that are being added."""
        return self._members.maximal_isr

    @property
    def high_watermark(self) -> int:
        """Everything below this offset is committed, as far as this replica knows."""
        return self.log.high_watermark

    @property
    def in_sync_end_offset(self) -> int:
        """All in sync have what is below this offset, though they may be too few to commit it. Of a
        leader."""
        with self._lock:
            least = self._members.least_end_offset(self.log.end_offset)
            return max(least, self.log.high_watermark)

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.log.end_offset

    @property
    def log_start_offset(self) -> int:
        """The offset of the first record that can be read."""
        return self.log.start_offset

    @property
    def last_stable_offset(self) -> int:
        """How far a read-committed consumer sees."""
        with self._lock:
            return self.log.last_stable_offset

    def follower_end_offset(self, broker_id: int) -> int:
        """Return a follower's log end offset, -1 if unknown."""
        follower = self._members.followers.get(broker_id)
        return UNKNOWN_OFFSET if follower is None else follower.log_end_offset

    def apply_retention(self) -> bool:
        """Delete segments beyond ``retention_bytes``; return whether any were deleted."""
        with self._lock:
            return self.log.apply_retention()

    def replace_segments(self, segments: Sequence[Segment], batches: Sequence[RecordBatch]) -> bool:
        """Replace closed segments by one with these batches; False if they are deleted."""
        with self._lock:
            return self.log.replace_segments(segments, batches) is not None

    # ---- changes of leadership

    def make_follower(
        self, leader_id: int, leader_epoch: int, replicas: Collection[int] = ()
    ) -> bool:
        """Follow ``leader_id``; -1: none until a leader is known.

        The log stays as it is: what doesn't belong in it goes by the response to the next fetch,
        which tells where the logs diverge.

        Returns:
            False, and nothing changed, if the epoch is an old one, or the one that this broker
            itself leads in.

        Raises:
            ValueError: told to follow itself.
        """
        if leader_id == self.broker_id:
            raise ValueError(
                f"broker {leader_id} was told to follow itself on {self.topic_partition}"
            )
        with self._lock:
            if leader_epoch < self.leader_epoch or (
                leader_epoch == self.leader_epoch and self.is_leader
            ):
                return False
            self._become_follower(leader_id)
            self.leader_epoch = leader_epoch
            self._members.forget_followers()
            if replicas:
                self._members.replicas = tuple(dict.fromkeys(replicas))
            return True

    def _become_follower(self, leader_id: int) -> None:
        if self.is_leader:
            self.leader_term = next(self._terms)
        self.leader_id = leader_id
        self.leader_epoch_start_offset = UNKNOWN_OFFSET

    def resign(self) -> None:
        """Stop the replica: it neither leads nor follows. The log is kept."""
        with self._lock:
            self._become_follower(NO_LEADER)
            self._members.forget_followers()

    # ---- the follower

    def next_fetch(self, max_bytes: int) -> PartitionFetch | None:
        """Return this follower's next fetch; None without a leader."""
        with self._lock:
            if self.leader_id in (self.broker_id, NO_LEADER):
                return None
            log = self.log
            return PartitionFetch(
                log.end_offset, max_bytes, self.leader_epoch, log.last_epoch, log.start_offset
            )

    def append_as_follower(self, fetch: PartitionFetch, response: PartitionFetchResponse) -> bool:
        """Apply the leader's response to ``fetch``. O(batches), or O(log) when it truncates.

        Returns:
            False, without a change, if the response is an error that requires a new fetch or a new
            leader, or if it is stale: this replica's epoch, leader or log end has changed since
            ``fetch``.

        Raises:
            KafkaError: INVALID_RECORD, when the batches don't follow one another.
        """
        with self._lock:
            if (
                self.leader_id == self.broker_id
                or fetch.current_leader_epoch != self.leader_epoch
                or fetch.fetch_offset != self.log.end_offset
            ):
                return False
            return apply_response(self.log, response)

    # ---- checking

    def _check(self) -> None:
        """Assert every invariant of the partition and its log. O(records)."""
        with self._lock:
            self.log._check()
            assert self.log.epochs.latest <= self.leader_epoch
            self._members._check(self.is_leader, self.leader_epoch)


def check_min_insync(topic_partition: TopicPartition, min_insync_replicas: int) -> None:
    if min_insync_replicas < 1:
        raise ValueError(
            f"min_insync_replicas={min_insync_replicas!r} for {topic_partition}: at least 1, "
            "the leader itself"
        )
