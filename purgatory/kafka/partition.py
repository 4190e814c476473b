"""One replica of a partition: as leader it knows its followers, as follower its leader.

The leader counts a record as committed when every member of the in-sync set has it: the high
watermark is the least log end offset of the set. Followers report theirs by the offset that they
fetch from, so fetches move the high watermark, and what it passes completes waiting produces.

A change of the in-sync set is first proposed to the controller and only then in force. Meanwhile
the high watermark is held back by the larger of the two sets (``maximal_isr``), since either may be
the one that a new leader is elected from.

Ground rules
------------
* ``_lock`` guards every field and the log. It is a leaf: nothing is called under it but the log.
* Whoever may complete waiting operations gets told so (``moved``, or a returned True), and runs
  the purgatories' checks after the lock is released. This class knows no purgatory.
* Plain attributes may be read without the lock where one value alone is wanted.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import NamedTuple

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.leader_epoch_cache import UNKNOWN_EPOCH
from purgatory.kafka.log import Log
from purgatory.kafka.producer_state import AppendedBatch
from purgatory.kafka.record_batch import NO_LEADER_EPOCH, RecordBatch
from purgatory.kafka.requests import (
    HIGH_WATERMARK_OFFSET,
    UNKNOWN_OFFSET,
    AbortedTransaction,
    AppendOrigin,
    EpochEndOffset,
    FetchIsolation,
    PartitionFetch,
    PartitionFetchResponse,
)
from purgatory.kafka.topic_partition import TopicPartition

NO_LEADER = -1

_NONE = ErrorCode.NONE
_LOG_END = FetchIsolation.LOG_END
_HIGH_WATERMARK = FetchIsolation.HIGH_WATERMARK

# What fetch_progress answers when a waiting fetch has to be answered now.
NOT_LEADER = -1
FENCED = -2
OUT_OF_PLACE = -3
DIVERGED = -4


class Follower:
    """What the leader knows of a follower, all of it from the follower's fetches."""

    __slots__ = (
        "broker_id",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int, last_caught_up_ms: int) -> None:
        self.broker_id = broker_id
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_caught_up_ms = last_caught_up_ms
        self.last_fetch_ms = 0
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET

    def update(
        self, end_offset: int, start_offset: int, leader_end_offset: int, now_ms: int
    ) -> None:
        """Note a fetch from ``end_offset``.

        A follower has caught up when it asks from the leader's end; or when it asks from where the
        end was at its fetch before: then it had caught up at that time, though a steady producer
        keeps it from ever standing at the end.
        """
        if end_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif end_offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = end_offset
        self.log_start_offset = start_offset
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms


class LeaderAppend(NamedTuple):
    """What became of an append.

    ``required_offset`` is what the high watermark must reach for acks=all, ``leadership`` the term
    in which that offset means these records, ``moved`` whether the high watermark moved.
    """

    base_offset: int
    required_offset: int
    log_start_offset: int
    leadership: int
    moved: bool
    duplicate: bool


class IsrChange(NamedTuple):
    """A change of the in-sync set that the controller has to agree to."""

    leader_epoch: int
    isr: tuple[int, ...]


class Partition:
    """A replica on broker ``broker_id``.

    Public attributes, all to be read only: ``leader_id`` (-1 when unknown), ``leader_epoch``,
    ``replicas`` and ``isr`` (broker ids in the order of the assignment; the ISR is empty on a
    follower), ``leadership`` (counts the times that this replica began or ceased to lead), ``log``.

    Raises:
        ValueError: min_insync_replicas below 1.
    """

    __slots__ = (
        "_followers",
        "_in_sync_followers",
        "_lock",
        "_pending_isr",
        "broker_id",
        "isr",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "leadership",
        "log",
        "min_insync_replicas",
        "replicas",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        broker_id: int,
        log: Log,
        min_insync_replicas: int = 1,
    ) -> None:
        if min_insync_replicas < 1:
            raise ValueError(
                f"min_insync_replicas={min_insync_replicas!r} for {topic_partition}: at least 1, "
                "the leader itself"
            )
        self.topic_partition = topic_partition
        self.broker_id = broker_id
        self.log = log
        self.min_insync_replicas = min_insync_replicas
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_LEADER_EPOCH
        self.leader_epoch_start_offset = UNKNOWN_OFFSET
        self.leadership = 0
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self._pending_isr: IsrChange | None = None
        self._followers: dict[int, Follower] = {}
        # The followers in the maximal ISR: those that hold the high watermark back.
        self._in_sync_followers: tuple[Follower, ...] = ()
        self._lock = threading.Lock()

    # ---- looking

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads."""
        return self.leader_id == self.broker_id

    @property
    def high_watermark(self) -> int:
        """Everything below this offset is committed, as far as this replica knows."""
        return self.log.high_watermark

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

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The in-sync set, and whoever is just being taken in."""
        pending = self._pending_isr
        if pending is None or len(pending.isr) < len(self.isr):
            return self.isr
        return pending.isr

    def low_watermark_if_leader(self, live_brokers: Collection[int] | None = None) -> int | None:
        """Return the least log start offset of the live replicas, -1 when one isn't known.

        None says that this replica doesn't lead. O(replicas).

        Args:
            live_brokers: those that count, beside this one; None counts all.
        """
        with self._lock:
            if self.leader_id != self.broker_id:
                return None
            low = self.log.start_offset
            for follower in self._followers.values():
                if live_brokers is None or follower.broker_id in live_brokers:
                    low = min(low, follower.log_start_offset)
            return low

    def follower_end_offset(self, broker_id: int) -> int:
        """Return how far a follower is known to have the log, -1 when unknown."""
        follower = self._followers.get(broker_id)
        return UNKNOWN_OFFSET if follower is None else follower.log_end_offset

    # ---- the leader: appending

    def append_as_leader(
        self,
        batches: Sequence[RecordBatch],
        required_acks: int = 1,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> LeaderAppend:
        """Append batches, all or none. O(batches).

        Args:
            batches: at least one; exactly one if it has a producer id.
            required_acks: -1 demands ``min_insync_replicas`` in the ISR.
            origin: who appends.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, MESSAGE_TOO_LARGE,
                INVALID_RECORD, or what the producer's state says of its numbers. Nothing was
                appended then.
        """
        with self._lock:
            if self.leader_id != self.broker_id:
                raise self._not_leader()
            if required_acks == -1 and len(self.isr) < self.min_insync_replicas:
                raise KafkaError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"{self.topic_partition} has {len(self.isr)} replicas in sync {self.isr}, "
                    f"min.insync.replicas is {self.min_insync_replicas}",
                )
            original = self._check_batches(batches, origin)
            log = self.log
            if original is not None:
                return LeaderAppend(
                    original.first_offset,
                    original.next_offset,
                    log.start_offset,
                    self.leadership,
                    False,
                    True,
                )
            base_offset = log.end_offset
            for batch in batches:
                log.append(batch.with_offset(log.end_offset, self.leader_epoch))
            # With a follower in sync, that one holds the high watermark back.
            moved = not self._in_sync_followers and self._advance_high_watermark()
            return LeaderAppend(
                base_offset, log.end_offset, log.start_offset, self.leadership, moved, False
            )

    def _check_batches(
        self, batches: Sequence[RecordBatch], origin: AppendOrigin
    ) -> AppendedBatch | None:
        """Refuse what may not be appended; return the original of a retry."""
        if not batches:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"an append to {self.topic_partition} without a batch"
            )
        log = self.log
        for batch in batches:
            if batch.size_bytes > log.config.max_batch_bytes:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"{batch!r} for {self.topic_partition} is larger than the "
                    f"{log.config.max_batch_bytes} bytes allowed",
                )
            if batch.producer_id >= 0:
                if len(batches) > 1:
                    raise KafkaError(
                        ErrorCode.INVALID_RECORD,
                        f"{len(batches)} batches in one append to {self.topic_partition}: one "
                        f"alone may come from an idempotent producer ({batch.producer_id})",
                    )
                return log.producers.find_duplicate(batch, origin, log.start_offset == 0)
            if batch.transactional or batch.control is not None:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD,
                    f"{batch!r} for {self.topic_partition} is transactional without a producer id",
                )
        return None

    def progress_of_append(self, required_offset: int, leadership: int) -> ErrorCode | None:
        """Say how an append with acks=all stands: None while it is not replicated enough.

        Args:
            required_offset: what the high watermark must reach.
            leadership: the term that the append was made in. In a later one, other records may
                have that offset.
        """
        with self._lock:
            if self.leader_id != self.broker_id or self.leadership != leadership:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            if self.log.high_watermark < required_offset:
                return None
            if len(self.isr) < self.min_insync_replicas:
                return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            return _NONE

    # ---- the leader: serving fetches

    def fetch(
        self,
        fetch: PartitionFetch,
        isolation: FetchIsolation,
        max_bytes: int,
        min_one: bool,
    ) -> PartitionFetchResponse:
        """Read for a consumer, or once more for a follower's waiting fetch.

        Args:
            fetch: what is asked.
            isolation: how far to read.
            max_bytes: what is left of the request's ``max_bytes``; the fetch's own holds too.
            min_one: the first batch comes even if it is larger.
        """
        with self._lock:
            try:
                return self._read(fetch, isolation, max_bytes, min_one)
            except KafkaError as error:
                return self._error_response(error)

    def fetch_as_follower(
        self,
        fetch: PartitionFetch,
        replica_id: int,
        max_bytes: int,
        min_one: bool,
        now_ms: int,
    ) -> tuple[PartitionFetchResponse, bool, bool]:
        """Read for a follower, and note how far it is.

        The answer carries the high watermark from before: the follower learns of what its own fetch
        committed by its next one, as in Kafka.

        Returns:
            The answer; whether the high or low watermark moved; whether the follower now qualifies
            for the ISR.
        """
        with self._lock:
            try:
                follower = self._followers.get(replica_id)
                if follower is None:
                    self._check_epoch(fetch.current_leader_epoch)
                    raise self._unknown_replica(replica_id, fetch)
                response = self._read(fetch, _LOG_END, max_bytes, min_one)
            except KafkaError as error:
                return self._error_response(error), False, False
            if response.diverging_epoch is not None:
                return response, False, False
            moved, may_join = self._note_fetch(
                follower, fetch.fetch_offset, fetch.log_start_offset, now_ms
            )
            return response, moved, may_join

    def update_follower_fetch_state(
        self, replica_id: int, end_offset: int, log_start_offset: int, now_ms: int
    ) -> bool:
        """Note that a follower has the log up to ``end_offset``. O(ISR).

        Returns:
            Whether the high or low watermark moved.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER, here or for a replica that isn't assigned.
        """
        with self._lock:
            if self.leader_id != self.broker_id:
                raise self._not_leader()
            follower = self._followers.get(replica_id)
            if follower is None:
                raise self._unknown_replica(replica_id, None)
            return self._note_fetch(follower, end_offset, log_start_offset, now_ms)[0]

    def fetch_place(self, fetch_offset: int) -> tuple[int, int]:
        """Return the segment (its base offset) and the byte position that a fetch stands at."""
        with self._lock:
            return self.log.place_of(fetch_offset)

    def fetch_progress(
        self,
        fetch: PartitionFetch,
        isolation: FetchIsolation,
        segment_base: int,
        position: int,
    ) -> int:
        """Return the bytes that a waiting fetch could have now, or why it must not wait on.

        Args:
            fetch: what was asked.
            isolation: how far it may see.
            segment_base, position: where it stood when it began to wait (``fetch_place``).

        Returns:
            0 or more bytes; NOT_LEADER, FENCED, OUT_OF_PLACE or DIVERGED. O(log n).
        """
        with self._lock:
            epoch = fetch.current_leader_epoch
            if epoch is not None and epoch != self.leader_epoch:
                return FENCED
            if self.leader_id != self.broker_id:
                return NOT_LEADER
            log = self.log
            end_offset = log.end_offset if isolation is _LOG_END else self._visible_end(isolation)
            fetch_offset = fetch.fetch_offset
            available = 0
            # A consumer may stand beyond what it can see, when a new leader has yet to learn how
            # much is committed: it waits. Beyond the log's end the records are gone.
            if fetch_offset > log.end_offset:
                return OUT_OF_PLACE
            # Equal offsets are compared no further: after a roll the end is in the new segment, and
            # the fetch, though nothing is there for it, would look as if it had fallen behind.
            if fetch_offset < end_offset:
                end_segment, end_position = log.place_of(end_offset)
                if end_segment > segment_base:
                    return OUT_OF_PLACE
                available = min(end_position - position, fetch.max_bytes)
            fetched_epoch = fetch.last_fetched_epoch
            # What was fetched in this leader's own epoch can't diverge from it.
            if (
                fetched_epoch is not None
                and fetched_epoch != self.leader_epoch
                and self._diverges(fetched_epoch, fetch_offset)
            ):
                return DIVERGED
            return available

    def _read(
        self, fetch: PartitionFetch, isolation: FetchIsolation, max_bytes: int, min_one: bool
    ) -> PartitionFetchResponse:
        self._check_epoch(fetch.current_leader_epoch)
        if self.leader_id != self.broker_id:
            raise self._not_leader()
        log = self.log
        fetch_offset = fetch.fetch_offset
        end_offset = log.end_offset
        diverging = None
        fetched_epoch = fetch.last_fetched_epoch
        if fetched_epoch is not None and (
            fetched_epoch != self.leader_epoch or fetch_offset > end_offset
        ):
            diverging = self._diverging_epoch(fetched_epoch, fetch_offset)
        batches: tuple[RecordBatch, ...] = ()
        aborted: tuple[AbortedTransaction, ...] = ()
        size_bytes = 0
        if diverging is None:
            upto = end_offset if isolation is _LOG_END else self._visible_end(isolation)
            if fetch_offset != end_offset:
                limit = max(0, min(max_bytes, fetch.max_bytes))
                batches = tuple(log.read(fetch_offset, limit, upto, min_one))
                for batch in batches:
                    size_bytes += batch.size_bytes
            if batches and isolation is FetchIsolation.TXN_COMMITTED:
                aborted = log.producers.aborted_between(fetch_offset, batches[-1].next_offset)
        return PartitionFetchResponse(
            _NONE,
            log.high_watermark,
            log.last_stable_offset,
            log.start_offset,
            batches,
            diverging,
            aborted,
            end_offset,
            size_bytes,
        )

    def _visible_end(self, isolation: FetchIsolation) -> int:
        if isolation is _HIGH_WATERMARK:
            return self.log.high_watermark
        if isolation is _LOG_END:
            return self.log.end_offset
        return self.log.last_stable_offset

    def _diverges(self, fetched_epoch: int, fetch_offset: int) -> bool:
        known = self.log.end_offset_for_epoch(fetched_epoch)
        return known.leader_epoch < fetched_epoch or known.end_offset < fetch_offset

    def _diverging_epoch(self, fetched_epoch: int, fetch_offset: int) -> EpochEndOffset | None:
        """Return where the follower's log and this one part, None if they don't.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, when the epoch is unknown here.
        """
        known = self.log.end_offset_for_epoch(fetched_epoch)
        if known == UNKNOWN_EPOCH:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} has no records of epoch {fetched_epoch}, which were "
                f"fetched before {fetch_offset}",
            )
        if known.leader_epoch < fetched_epoch or known.end_offset < fetch_offset:
            return known
        return None

    def _note_fetch(
        self, follower: Follower, end_offset: int, log_start_offset: int, now_ms: int
    ) -> tuple[bool, bool]:
        log = self.log
        moved = False
        if log_start_offset != follower.log_start_offset:
            # At worst a check too many: the low watermark is the least of all.
            moved = log_start_offset > follower.log_start_offset
        advanced = end_offset != follower.log_end_offset
        follower.update(end_offset, log_start_offset, log.end_offset, now_ms)
        may_join = (
            follower not in self._in_sync_followers
            and self._pending_isr is None
            and self._is_in_sync(follower)
        )
        if advanced and self._advance_high_watermark():
            moved = True
        return moved, may_join

    def _advance_high_watermark(self) -> bool:
        """Set the high watermark to the least log end offset of the maximal ISR, if that is more.

        It is less while followers are still unknown to a new leader: it never goes back.
        """
        least = self.log.end_offset
        for follower in self._in_sync_followers:
            if follower.log_end_offset < least:
                least = follower.log_end_offset
        return least > self.log.high_watermark and self.log.update_high_watermark(least)

    # ---- the leader: the in-sync set

    def _is_in_sync(self, follower: Follower) -> bool:
        """Whether a follower has all that is committed, and something of this leader's epoch."""
        end_offset = follower.log_end_offset
        return end_offset >= max(self.log.high_watermark, self.leader_epoch_start_offset)

    def propose_expansion(self, replica_id: int) -> IsrChange | None:
        """Begin to take a follower into the ISR; None if it doesn't qualify (any more)."""
        with self._lock:
            follower = self._followers.get(replica_id)
            if (
                follower is None
                or self._pending_isr is not None
                or follower in self._in_sync_followers
                or not self._is_in_sync(follower)
            ):
                return None
            return self._propose({*self.isr, replica_id})

    def propose_shrink(self, now_ms: int, max_lag_ms: int) -> IsrChange | None:
        """Begin to drop from the ISR who didn't catch up for ``max_lag_ms``; None if all did."""
        with self._lock:
            if self.leader_id != self.broker_id or self._pending_isr is not None:
                return None
            end_offset = self.log.end_offset
            lagging = {
                follower.broker_id
                for follower in self._in_sync_followers
                if follower.log_end_offset != end_offset
                and now_ms - follower.last_caught_up_ms > max_lag_ms
            }
            return self._propose(set(self.isr) - lagging) if lagging else None

    def settle_isr_change(self, change: IsrChange, accepted: bool) -> bool:
        """Put a proposed change in force, or drop it; say whether it is in force now.

        A change of another leader epoch, or one that something else replaced, is dropped.
        """
        with self._lock:
            if self._pending_isr is not change:
                return False
            self._pending_isr = None
            if accepted:
                self.isr = change.isr
            self._count_in_sync_followers()
            # A smaller set may be further on; one that was refused holds nothing back any more.
            self._advance_high_watermark()
            return accepted

    def _propose(self, members: Collection[int]) -> IsrChange:
        isr = tuple(broker_id for broker_id in self.replicas if broker_id in members)
        self._pending_isr = IsrChange(self.leader_epoch, isr)
        self._count_in_sync_followers()
        return self._pending_isr

    def _count_in_sync_followers(self) -> None:
        members = self.maximal_isr
        self._in_sync_followers = tuple(
            follower for follower in self._followers.values() if follower.broker_id in members
        )

    # ---- the leader: deleting records

    def delete_records(self, offset: int) -> int:
        """Move the log's start up; return the offset that the low watermark has to reach.

        Args:
            offset: the first to keep; -1 stands for the high watermark.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER; OFFSET_OUT_OF_RANGE, below -1 or beyond the high
                watermark.
        """
        with self._lock:
            if self.leader_id != self.broker_id:
                raise self._not_leader()
            if offset == HIGH_WATERMARK_OFFSET:
                offset = self.log.high_watermark
            if offset < 0:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"records of {self.topic_partition} up to offset {offset} were to be deleted: "
                    "an offset is 0 or more, or -1 for the high watermark",
                )
            self.log.delete_up_to(offset)
            return offset

    # ---- changes of leadership

    def make_leader(
        self, leader_epoch: int, isr: Collection[int], replicas: Collection[int], now_ms: int
    ) -> bool:
        """Lead in ``leader_epoch``, or go on leading with another assignment or ISR.

        Args:
            leader_epoch: given by the controller, higher at each change.
            isr: who is in sync, this broker among them.
            replicas: who is assigned, in order.
            now_ms: the followers in sync count as caught up as of now.

        Returns:
            False, and nothing changed, if the epoch is an old one or another broker's.

        Raises:
            ValueError: this broker isn't in the ISR, or a member of it isn't assigned.
        """
        replicas = tuple(dict.fromkeys(replicas))
        self._check_assignment(isr, replicas)
        with self._lock:
            was_leader = self.leader_id == self.broker_id
            if leader_epoch < self.leader_epoch:
                return False
            if leader_epoch == self.leader_epoch and self.leader_id not in (
                self.broker_id,
                NO_LEADER,
            ):
                return False
            if leader_epoch > self.leader_epoch or not was_leader:
                self.leader_epoch = leader_epoch
                self.leader_epoch_start_offset = self.log.end_offset
                self.log.epochs.assign(leader_epoch, self.log.end_offset)
            if not was_leader:
                self.leader_id = self.broker_id
                self.leadership += 1
                self._followers = {}
            self.replicas = replicas
            self.isr = tuple(broker_id for broker_id in replicas if broker_id in isr)
            self._pending_isr = None
            self._followers = {
                broker_id: self._followers.get(broker_id) or self._new_follower(broker_id, now_ms)
                for broker_id in replicas
                if broker_id != self.broker_id
            }
            self._count_in_sync_followers()
            self._advance_high_watermark()
            return True

    def _new_follower(self, broker_id: int, now_ms: int) -> Follower:
        return Follower(broker_id, now_ms if broker_id in self.isr else 0)

    def _check_assignment(self, isr: Collection[int], replicas: tuple[int, ...]) -> None:
        if self.broker_id not in isr:
            raise ValueError(
                f"broker {self.broker_id} was told to lead {self.topic_partition} with the ISR "
                f"{tuple(isr)}: a leader is a member of it"
            )
        strangers = [broker_id for broker_id in isr if broker_id not in replicas]
        if strangers:
            raise ValueError(
                f"the ISR {tuple(isr)} of {self.topic_partition} names {strangers}, "
                f"which aren't among the replicas {replicas}"
            )

    def make_follower(
        self, leader_id: int, leader_epoch: int, replicas: Collection[int] = ()
    ) -> bool:
        """Follow ``leader_id``, or nobody (-1) until a leader is known.

        The log stays as it is: what doesn't belong in it goes by the answer to the next fetch,
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
            if leader_epoch < self.leader_epoch:
                return False
            if leader_epoch == self.leader_epoch and self.leader_id == self.broker_id:
                return False
            if self.leader_id == self.broker_id:
                self.leadership += 1
            self.leader_id = leader_id
            self.leader_epoch = leader_epoch
            if replicas:
                self.replicas = tuple(dict.fromkeys(replicas))
            self._have_no_followers()
            return True

    def resign(self) -> None:
        """Neither lead nor follow any more: the replica is stopped. The log stays as it is."""
        with self._lock:
            if self.leader_id == self.broker_id:
                self.leadership += 1
            self.leader_id = NO_LEADER
            self._have_no_followers()

    def _have_no_followers(self) -> None:
        self.leader_epoch_start_offset = UNKNOWN_OFFSET
        self.isr = ()
        self._pending_isr = None
        self._followers = {}
        self._in_sync_followers = ()

    # ---- the follower

    def next_fetch(self, max_bytes: int) -> PartitionFetch | None:
        """Return what this follower asks of its leader next; None if it doesn't follow any."""
        with self._lock:
            if self.leader_id in (self.broker_id, NO_LEADER):
                return None
            log = self.log
            return PartitionFetch(
                log.end_offset, max_bytes, self.leader_epoch, log.last_epoch, log.start_offset
            )

    def append_as_follower(self, fetch: PartitionFetch, response: PartitionFetchResponse) -> bool:
        """Take the leader's answer to ``fetch``. O(batches), or O(log) when it truncates.

        Returns:
            False, and nothing changed, when the answer is an error that only a new fetch or a new
            leader helps against, or stale: this replica's epoch, leadership or log end is no longer
            what ``fetch`` said.

        Raises:
            KafkaError: INVALID_RECORD, when the batches don't follow one another.
        """
        with self._lock:
            log = self.log
            if (
                self.leader_id == self.broker_id
                or fetch.current_leader_epoch != self.leader_epoch
                or fetch.fetch_offset != log.end_offset
            ):
                return False
            if response.error is not _NONE:
                return self._find_way_back(response)
            if response.diverging_epoch is not None:
                return self._truncate_where_diverging(response.diverging_epoch)
            for batch in response.batches:
                log.append(batch)
            if response.high_watermark > log.high_watermark:
                log.update_high_watermark(response.high_watermark)
            if response.log_start_offset > log.start_offset:
                log.delete_up_to(min(response.log_start_offset, log.high_watermark))
            return True

    def _find_way_back(self, response: PartitionFetchResponse) -> bool:
        """Out of the leader's range: cut off what is beyond its end, or begin at its start."""
        if response.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
            return False
        log = self.log
        if 0 <= response.log_end_offset < log.end_offset:
            log.truncate_to(response.log_end_offset)
            return True
        if response.log_start_offset > log.end_offset:
            log.truncate_fully_and_start_at(response.log_start_offset)
            return True
        return False

    def _truncate_where_diverging(self, leaders: EpochEndOffset) -> bool:
        """Cut the log to the last point that both may have in common.

        Where this log doesn't know the leader's epoch either, the next fetch goes one epoch
        further back, until one is found that both know.
        """
        log = self.log
        own = log.end_offset_for_epoch(leaders.leader_epoch)
        if own == UNKNOWN_EPOCH:
            log.truncate_to(min(leaders.end_offset, log.end_offset))
        else:
            log.truncate_to(min(leaders.end_offset, own.end_offset, log.end_offset))
        return True

    def offset_for_leader_epoch(
        self, leader_epoch: int, current_leader_epoch: int | None = None
    ) -> EpochEndOffset:
        """Return the largest epoch at or below ``leader_epoch``, and where it ends here.

        Raises:
            KafkaError: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER.
        """
        with self._lock:
            self._check_epoch(current_leader_epoch)
            if self.leader_id != self.broker_id:
                raise self._not_leader()
            return self.log.end_offset_for_epoch(leader_epoch)

    # ---- errors

    def _check_epoch(self, current_leader_epoch: int | None) -> None:
        if current_leader_epoch is None or current_leader_epoch == self.leader_epoch:
            return
        old = current_leader_epoch < self.leader_epoch
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH if old else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self.topic_partition} is in leader epoch {self.leader_epoch} on broker "
            f"{self.broker_id}, the request in {current_leader_epoch}",
        )

    def _not_leader(self) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"broker {self.broker_id} doesn't lead {self.topic_partition} in epoch "
            f"{self.leader_epoch}; broker {self.leader_id} does, as far as it knows (-1: nobody)",
        )

    def _unknown_replica(self, replica_id: int, fetch: PartitionFetch | None) -> KafkaError:
        if self.leader_id != self.broker_id:
            return self._not_leader()
        # With a matching epoch it is this leader that may not have heard of the replica yet.
        newer = fetch is not None and fetch.current_leader_epoch is not None
        return KafkaError(
            ErrorCode.UNKNOWN_LEADER_EPOCH if newer else ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"broker {replica_id} isn't among the replicas {self.replicas} of "
            f"{self.topic_partition}",
        )

    def _error_response(self, error: KafkaError) -> PartitionFetchResponse:
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            return PartitionFetchResponse(error.code, message=error.message)
        log = self.log
        return PartitionFetchResponse(
            error.code,
            log.high_watermark,
            log.last_stable_offset,
            log.start_offset,
            log_end_offset=log.end_offset,
            message=error.message,
        )

    # ---- checking

    def _check(self) -> None:
        """Assert every invariant of the partition and its log. O(records)."""
        with self._lock:
            self.log._check()
            assert len(set(self.replicas)) == len(self.replicas), self.replicas
            assert set(self.isr) <= set(self.replicas), (self.isr, self.replicas)
            assert set(self.maximal_isr) >= set(self.isr)
            assert self.log.epochs.latest <= self.leader_epoch
            if self.leader_id != self.broker_id:
                assert not self.isr and not self._followers and self._pending_isr is None
                assert not self._in_sync_followers
                return
            assert self.broker_id in self.isr, (self.broker_id, self.isr)
            assert set(self._followers) == set(self.replicas) - {self.broker_id}
            assert self._pending_isr is None or self._pending_isr.leader_epoch == self.leader_epoch
            in_sync = {follower.broker_id for follower in self._in_sync_followers}
            assert in_sync == set(self.maximal_isr) - {self.broker_id}
