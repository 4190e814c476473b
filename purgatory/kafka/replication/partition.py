"""A broker's replica of a partition: its log, its role as leader or follower, and its requests.

The controller numbers every change of leadership: a request with an older epoch is refused.

The leader appends, and serves reads. A record is committed when every replica of the in-sync set
has it: the high watermark is the lowest log end offset of the set. Followers report theirs by the
offset that they fetch from, so fetches move the high watermark, which completes waiting produces.

A follower copies its leader's log, and never truncates its own at a change of leader: its records
may be just those that the new leader has. The response to its next fetch has the offset at which
the logs diverge, by the epochs of both.

Ground rules
------------
* Only the broker's loop touches a partition and its log: there is one thread, and no lock.
* A method that may complete delayed operations returns that (``is_advanced``, or True); the caller
  checks the purgatories then. This class does not use the purgatories.
* The operations that wait on a partition are checked as soon as its role has changed. Its log is
  truncated only later, by the response to a fetch, which is another event of the loop: so no
  operation waits for an offset at which the log has other records by now.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.log.fetch_thresholds import EndPositions, FetchIsolation, LogEnds, end_keys
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_EPOCH, UNKNOWN_OFFSET, EpochEndOffset
from purgatory.kafka.log.log import Log, LogConfig
from purgatory.kafka.log.producer_state import AbortedTransaction, AppendedBatch, AppendOrigin
from purgatory.kafka.log.record_batch import NO_LEADER_EPOCH, RecordBatch
from purgatory.kafka.replication.in_sync_replicas import Follower, InSyncReplicas, IsrChange
from purgatory.kafka.replication.requests import (
    HIGH_WATERMARK_OFFSET,
    PartitionFetch,
    PartitionFetchResponse,
)
from purgatory.kafka.topic_partition import TopicPartition

NO_LEADER = -1

# Returned by `Partition.fetch_progress`: the reasons to answer a waiting fetch now.
NOT_LEADER = -1
FENCED = -2
OUT_OF_RANGE = -3
DIVERGED = -4
_NONE = ErrorCode.NONE
_LOG_END = FetchIsolation.LOG_END
_HIGH_WATERMARK = FetchIsolation.HIGH_WATERMARK
_TXN_COMMITTED = FetchIsolation.TXN_COMMITTED


@dataclass(slots=True)
class LeaderAppend:
    """The result of an append.

    The high watermark must reach ``required_offset`` for acks=all; ``is_advanced`` says whether it
    moved.
    """

    base_offset: int
    required_offset: int
    log_start_offset: int
    is_advanced: bool
    duplicate: bool


class FetchPosition(NamedTuple):
    """The position of a fetch: whether this broker led then, the base offset of the segment, and
    the byte position in the log."""

    is_leader: bool
    segment_base: int
    position: int


_NO_RECORDS = PartitionFetchResponse(_NONE)
_INDEX_INTERVAL_BYTES = 4096
"""The precision of a read's end in Kafka's index, which tells the aborted transactions."""


class Partition:
    """The replica of a partition on broker ``broker_id``.

    Public attributes, all to be read only: ``leader_id`` (-1 when unknown), ``leader_epoch``,
    ``leader_epoch_start_offset`` (where a leader's own epoch began, -1 on a follower), ``log``,
    ``end_keys``, ``min_insync_replicas``.

    Args:
        topic_partition, broker_id: which replica.
        log: its log.
        min_insync_replicas: how many must be in sync for acks=all.

    Raises:
        ValueError: min_insync_replicas below 1.
    """

    __slots__ = (
        "_log_ends",
        "_members",
        "broker_id",
        "end_keys",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
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
    ) -> None:
        _check_min_insync(topic_partition, min_insync_replicas)
        self.topic_partition = topic_partition
        self.broker_id = broker_id
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_LEADER_EPOCH
        self.leader_epoch_start_offset = UNKNOWN_OFFSET
        self.log = log
        self.end_keys = end_keys(topic_partition)
        self._log_ends = LogEnds(log)
        self.min_insync_replicas = min_insync_replicas
        self._members = InSyncReplicas(broker_id)

    # ---- state

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads."""
        return self.leader_id == self.broker_id

    @property
    def replicas(self) -> tuple[int, ...]:
        """The assigned replicas, in order."""
        return self._members.replicas

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas; empty on a follower."""
        return self._members.isr

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The in-sync set, with members that are being added."""
        return self._members.maximal_isr

    @property
    def effective_min_isr(self) -> int:
        """``min_insync_replicas``, but no more than there are replicas."""
        return min(self.min_insync_replicas, len(self._members.replicas))

    @property
    def high_watermark(self) -> int:
        """Everything below this offset is committed, as far as this replica knows."""
        return self.log.high_watermark

    @property
    def in_sync_end_offset(self) -> int:
        """The offset below which all in-sync replicas have the leader's records, though they may be
        too few to commit these."""
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
        """The offset that a read-committed consumer can't see beyond."""
        return self.log.last_stable_offset

    def visible_end(self, isolation: FetchIsolation) -> int:
        """Return the offset that a fetch can't see beyond."""
        log = self.log
        if isolation is _LOG_END:
            return log.end_offset
        return log.high_watermark if isolation is _HIGH_WATERMARK else log.last_stable_offset

    def follower_end_offset(self, broker_id: int) -> int:
        """Return a follower's log end offset, -1 if unknown."""
        follower = self._members.followers.get(broker_id)
        return UNKNOWN_OFFSET if follower is None else follower.log_end_offset

    def preferred_read_replica(
        self, rack: str, rack_of: Callable[[int], str | None], fetch_offset: int
    ) -> int | None:
        """Return the follower that a consumer is to read from (KIP-392); None for the leader.

        The follower is in the consumer's rack and in sync, and has the requested offset; of several
        such, it has most. O(replicas).

        Args:
            rack: the consumer's.
            rack_of: returns the rack of a broker that lives, None of any other.
            fetch_offset: the requested offset.
        """
        if not self.is_leader or rack_of(self.broker_id) == rack:
            return None
        ends = {
            broker_id: self.follower_end_offset(broker_id)
            for broker_id in self.isr
            if broker_id != self.broker_id and rack_of(broker_id) == rack
        }
        reachable = {broker_id: end for broker_id, end in ends.items() if end >= fetch_offset}
        return max(reachable, key=reachable.__getitem__, default=None)

    def low_watermark_if_leader(self, live_brokers: Collection[int] | None = None) -> int | None:
        """Return the least log start offset of the live replicas, -1 if one is unknown; None if
        this replica doesn't lead. O(replicas).

        Args:
            live_brokers: those that count, beside this one; None counts all.
        """
        if self.leader_id != self.broker_id:
            return None
        low = self.log.start_offset
        for follower in self._members.followers.values():
            if live_brokers is None or follower.broker_id in live_brokers:
                low = min(low, follower.log_start_offset)
        return low

    def configure(self, config: LogConfig, min_insync_replicas: int) -> bool:
        """Apply new settings; return whether the high watermark moved by them.

        Raises:
            ValueError: as for a new replica and a new log.
        """
        _check_min_insync(self.topic_partition, min_insync_replicas)
        self.log.configure(config)
        self.min_insync_replicas = min_insync_replicas
        return self.leader_id == self.broker_id and self._advance_high_watermark()

    # ---- changes of leadership

    def make_leader(
        self, leader_epoch: int, isr: Collection[int], replicas: Collection[int], now_ms: int
    ) -> bool:
        """Become the leader in ``leader_epoch``, or update the leader's assignment and ISR.

        Args:
            leader_epoch: from the controller, higher at each change.
            isr: the in-sync replicas, including this broker.
            replicas: the assigned replicas, in order.
            now_ms: the time at which in-sync followers count as caught up.

        Returns:
            False, without a change, if the epoch is stale or another broker's.

        Raises:
            ValueError: this broker isn't in the ISR, or a member of it isn't assigned.
        """
        replicas = tuple(dict.fromkeys(replicas))
        self._check_assignment(isr, replicas)
        is_same_epoch = leader_epoch == self.leader_epoch
        if leader_epoch < self.leader_epoch or (
            is_same_epoch and self.leader_id not in (self.broker_id, NO_LEADER)
        ):
            return False
        if not (is_same_epoch and self.is_leader):
            self.leader_id = self.broker_id
            self.leader_epoch = leader_epoch
            self.leader_epoch_start_offset = self.log.end_offset
            self.log.epochs.assign(leader_epoch, self.log.end_offset)
            self._log_ends.begin(self.log)
        self._members.assign(isr, replicas, now_ms)
        self._advance_high_watermark()
        return True

    def _check_assignment(self, isr: Collection[int], replicas: tuple[int, ...]) -> None:
        if self.broker_id not in isr:
            raise ValueError(
                f"broker {self.broker_id} was told to lead {self.topic_partition} with the ISR "
                f"{tuple(isr)}: a leader is a member of it"
            )
        invalid_replicas = [broker_id for broker_id in isr if broker_id not in replicas]
        if invalid_replicas:
            raise ValueError(
                f"the ISR {tuple(isr)} of {self.topic_partition} names {invalid_replicas}, "
                f"which aren't among the replicas {replicas}"
            )

    def make_follower(
        self, leader_id: int, leader_epoch: int, replicas: Collection[int] = ()
    ) -> bool:
        """Follow ``leader_id``; -1: none until a leader is known.

        The log stays as it is: the response to the next fetch says where the logs diverge.

        Returns:
            False, without a change, if the epoch is stale, or the one that this broker itself leads
            in.

        Raises:
            ValueError: the leader is this broker.
        """
        if leader_id == self.broker_id:
            raise ValueError(
                f"broker {leader_id} was told to follow itself on {self.topic_partition}"
            )
        if leader_epoch < self.leader_epoch or (
            leader_epoch == self.leader_epoch and self.is_leader
        ):
            return False
        self._become_follower(leader_id)
        self.leader_epoch = leader_epoch
        if replicas:
            self._members.replicas = tuple(dict.fromkeys(replicas))
        return True

    def _become_follower(self, leader_id: int) -> None:
        self.leader_id = leader_id
        self.leader_epoch_start_offset = UNKNOWN_OFFSET
        self._members.forget_followers()

    def resign(self) -> None:
        """Stop the replica: it neither leads nor follows. The log is kept."""
        self._become_follower(NO_LEADER)

    def _advance_high_watermark(self) -> bool:
        """Set the high watermark to the least log end offset of the maximal ISR, if that is more.

        The least end is lower while followers are still unknown to a new leader: the high watermark
        never goes back. The high watermark stands still while fewer than ``effective_min_isr`` are
        in sync, as in Kafka from 3.7 on (KIP-966): records that so few have are not committed.
        """
        members, log = self._members, self.log
        in_sync = len(members.isr)
        if in_sync < self.min_insync_replicas and in_sync < self.effective_min_isr:
            return False
        least = members.least_end_offset(log.end_offset)
        return least > log.high_watermark and log.update_high_watermark(least)

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
            required_acks: -1 demands ``effective_min_isr`` replicas in the ISR.
            origin: a client, a coordinator or the replication.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, MESSAGE_TOO_LARGE,
                INVALID_RECORD, KAFKA_STORAGE_ERROR, or an error of the producer's sequence numbers.
                Nothing is appended.
        """
        if self.leader_id != self.broker_id:
            raise self._not_leader()
        if required_acks == -1 and len(self._members.isr) < self.effective_min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic_partition} has {len(self.isr)} replicas in sync {self.isr}, "
                f"{self.effective_min_isr} of them must be (min.insync.replicas is "
                f"{self.min_insync_replicas})",
            )
        log = self.log
        original = self._find_duplicate(batches, origin)
        if original is not None:
            return LeaderAppend(
                original.first_offset, original.next_offset, log.start_offset, False, True
            )
        base_offset = log.end_offset
        try:
            for batch in batches:
                log.append(batch.with_offset(log.end_offset, self.leader_epoch))
        except KafkaError:  # the storage is full: no batch is kept
            if log.end_offset > base_offset:
                log.truncate_to(base_offset)
            raise
        # A follower in sync holds the high watermark back.
        is_advanced = not self._members.in_sync_followers and self._advance_high_watermark()
        return LeaderAppend(base_offset, log.end_offset, log.start_offset, is_advanced, False)

    def _find_duplicate(
        self, batches: Sequence[RecordBatch], origin: AppendOrigin
    ) -> AppendedBatch | None:
        """Validate batches; return the original append of a retry, None for new records.

        Raises:
            KafkaError: MESSAGE_TOO_LARGE, INVALID_RECORD, or an error of the producer's state.
        """
        log = self.log
        if not batches:
            raise KafkaError(ErrorCode.INVALID_RECORD, "an append without a batch")
        for batch in batches:
            check_size(batch, log.config)
            if len(batches) > 1 and (origin is AppendOrigin.CLIENT or batch.producer_id >= 0):
                raise KafkaError(
                    ErrorCode.INVALID_RECORD,
                    f"{len(batches)} batches in one append to a partition: a producer sends "
                    "exactly one, since the response has no place for a second one",
                )
            if batch.producer_id >= 0:
                return log.producers.find_duplicate(batch, origin)
            if batch.control is not None:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD, f"{batch!r} ends a transaction without a producer id"
                )
        return None

    def progress_of_append(self, required_offset: int) -> ErrorCode | None:
        """Return the result of an append with acks=all; None while it is not replicated enough.

        Args:
            required_offset: the offset that the high watermark must reach.
        """
        if self.leader_id != self.broker_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.log.high_watermark < required_offset:
            return None
        in_sync = len(self._members.maximal_isr)
        if in_sync < self.min_insync_replicas and in_sync < self.effective_min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return _NONE

    # ---- serving fetches

    def fetch(
        self,
        fetch: PartitionFetch,
        isolation: FetchIsolation,
        max_bytes: int,
        min_one_batch: bool,
        from_follower: bool = False,
    ) -> PartitionFetchResponse:
        """Read for a consumer, or once more for a follower's waiting fetch.

        Args:
            fetch: the requested position.
            isolation: how far to read.
            max_bytes: the rest of the request's ``max_bytes``; the fetch's own holds too.
            min_one_batch: the first batch comes even if it is larger.
            from_follower: whether to read where this broker doesn't lead, too.
        """
        try:
            epoch = fetch.current_leader_epoch
            if epoch is not None and epoch != self.leader_epoch:
                raise self._epoch_error(epoch)
            if self.leader_id != self.broker_id and not from_follower:
                raise self._not_leader()
            return self._read(fetch, isolation, max_bytes, min_one_batch)
        except KafkaError as error:
            return self._error_response(error)

    def fetch_as_follower(
        self,
        fetch: PartitionFetch,
        replica_id: int,
        max_bytes: int,
        min_one_batch: bool,
        now_ms: int,
        may_wait: bool = False,
    ) -> tuple[PartitionFetchResponse, bool, bool]:
        """Read for a follower, and record how far it is.

        The response carries the high watermark from before: the follower learns by its next fetch
        what this one committed, as in Kafka.

        Args:
            may_wait: whether a response without records is not needed: it lacks the offsets then.

        Returns:
            The response; whether the high or low watermark moved; whether the follower qualifies
            for the ISR now.
        """
        try:
            epoch = fetch.current_leader_epoch
            if epoch is not None and epoch != self.leader_epoch:
                raise self._epoch_error(epoch)
            if self.leader_id != self.broker_id:
                raise self._not_leader()
            follower = self._members.followers.get(replica_id)
            if follower is None:
                raise self._unknown_replica(replica_id, fetch)
            is_at_end = (
                fetch.fetch_offset == self.log.end_offset
                and fetch.last_fetched_epoch == self.leader_epoch
            )
            if may_wait and is_at_end:
                response = _NO_RECORDS
            else:
                response = self._read(fetch, _LOG_END, max_bytes, min_one_batch)
        except KafkaError as error:
            return self._error_response(error), False, False
        if response.diverging_epoch is not None:
            return response, False, False
        is_advanced, may_expand_isr = self._update_follower(
            follower, fetch.fetch_offset, fetch.log_start_offset, now_ms
        )
        return response, is_advanced, may_expand_isr

    def _read(
        self,
        fetch: PartitionFetch,
        isolation: FetchIsolation,
        max_bytes: int,
        min_one_batch: bool,
    ) -> PartitionFetchResponse:
        """Read the records of a fetch, or return where the requester's log diverges from this one.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE.
        """
        log, fetch_offset = self.log, fetch.fetch_offset
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
            if fetch_offset != end_offset:
                if fetch.max_bytes < 0:  # as in Kafka
                    error = f"{fetch.max_bytes} bytes can't be read"
                    raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, error)
                limit = fetch.max_bytes if fetch.max_bytes < max_bytes else max(0, max_bytes)
                if isolation is _LOG_END:
                    batches = tuple(log.read(fetch_offset, limit, end_offset, min_one_batch))
                else:
                    visible_end = self.visible_end(isolation)
                    batches = tuple(
                        log.read_records(fetch_offset, limit, visible_end, min_one_batch)
                    )
                for batch in batches:
                    size_bytes += batch.size_bytes
            if batches and isolation is _TXN_COMMITTED:
                bound = log.offset_behind(batches[-1].next_offset, _INDEX_INTERVAL_BYTES)
                aborted = log.producers.aborted_between(fetch_offset, bound)
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

    def _error_response(self, error: KafkaError) -> PartitionFetchResponse:
        """Return an error response; OFFSET_OUT_OF_RANGE also has the log's bounds."""
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

    def _diverging_epoch(self, fetched_epoch: int, fetch_offset: int) -> EpochEndOffset | None:
        """Return where the follower's log and this one diverge, None if they don't."""
        epoch_end = self.log.end_offset_for_epoch(fetched_epoch)
        if epoch_end == UNKNOWN_EPOCH:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the leader has no records of epoch {fetched_epoch}, which were fetched before "
                f"{fetch_offset}",
            )
        return epoch_end if _diverges(epoch_end, fetched_epoch, fetch_offset) else None

    def fetch_position(
        self, fetch_offset: int, isolation: FetchIsolation = _LOG_END
    ) -> FetchPosition:
        """Return the position of a fetch: a consumer's begins behind placeholders. O(log n)."""
        log = self.log
        if isolation is not _LOG_END:
            fetch_offset = log.skip_placeholders(fetch_offset)
        return FetchPosition(self.is_leader, *log.location_of(fetch_offset))

    def fetch_progress(
        self,
        fetch: PartitionFetch,
        isolation: FetchIsolation,
        begun: FetchPosition,
        from_follower: bool = False,
    ) -> int:
        """Return the bytes available to a waiting fetch, or the reason to complete it. O(log n).

        Args:
            fetch: the requested position.
            isolation: how far it may see.
            begun: the position where it began to wait.
            from_follower: whether it may wait where this broker doesn't lead, too.

        Returns:
            0 or more bytes; NOT_LEADER, FENCED, OUT_OF_RANGE or DIVERGED.
        """
        epoch = fetch.current_leader_epoch
        if epoch is not None and epoch != self.leader_epoch:
            return FENCED
        is_leader = self.leader_id == self.broker_id
        if not (is_leader or from_follower) or is_leader != begun.is_leader:
            return NOT_LEADER
        log = self.log
        fetch_offset = fetch.fetch_offset
        # A consumer may stand beyond what it can see, when a new leader has yet to learn how much
        # is committed: it waits. Beyond the log's end the records are gone.
        if fetch_offset > log.end_offset:
            return OUT_OF_RANGE
        available = 0
        end_offset = self.visible_end(isolation)
        # Equal offsets are compared no further: after a roll the end is in the new segment, and the
        # fetch, though nothing is there for it, would look as if it had fallen behind.
        if fetch_offset < end_offset:
            end_segment, end_position = log.location_of(end_offset)
            if end_segment > begun.segment_base:
                return OUT_OF_RANGE
            # Placeholders may reach beyond what a consumer can see.
            available = max(0, min(end_position - begun.position, fetch.max_bytes))
        fetched_epoch = fetch.last_fetched_epoch
        # Records that were fetched in this leader's own epoch can't diverge from it.
        if fetched_epoch is not None and fetched_epoch != self.leader_epoch:
            epoch_end = log.end_offset_for_epoch(fetched_epoch)
            if _diverges(epoch_end, fetched_epoch, fetch_offset):
                return DIVERGED
        return available

    def drain_end_changes(self) -> EndPositions | None:
        """Return which ends of the log moved since the last call, None if all fetches must be
        looked at. O(log n)."""
        if self.leader_id != self.broker_id:
            return None
        return self._log_ends.advance(self.log)

    # ---- the leader: its followers and the in-sync set

    def record_fetch(self, replica_id: int, now_ms: int) -> None:
        """Record a fetch from the log end by a follower that had caught up.

        Call it after an append that the follower has not fetched yet.
        """
        follower = self._members.followers.get(replica_id)
        if (
            follower is not None
            and follower.log_end_offset >= follower.last_fetch_leader_end_offset
        ):
            if now_ms > follower.last_fetch_ms:
                follower.last_fetch_ms = now_ms
            if now_ms > follower.last_caught_up_ms:
                follower.last_caught_up_ms = now_ms

    def _update_follower(
        self, follower: Follower, end_offset: int, log_start_offset: int, now_ms: int
    ) -> tuple[bool, bool]:
        # At worst a check too many: the low watermark is the least of all.
        is_advanced = log_start_offset > follower.log_start_offset
        advanced = end_offset != follower.log_end_offset
        follower.update(end_offset, log_start_offset, self.log.end_offset, now_ms)
        members = self._members
        may_expand_isr = follower not in members.in_sync_followers and members.may_expand(
            follower, self._required_offset()
        )
        if advanced and self._advance_high_watermark():
            is_advanced = True
        return is_advanced, may_expand_isr

    def _required_offset(self) -> int:
        """The offset that a new ISR member must have: the high watermark and the epoch's start."""
        return max(self.log.high_watermark, self.leader_epoch_start_offset)

    def propose_expansion(self, replica_id: int) -> IsrChange | None:
        """Propose to add a follower to the ISR; return None if it does not qualify."""
        follower = self._members.followers.get(replica_id)
        if follower is None or not self._members.may_expand(follower, self._required_offset()):
            return None
        return self._members.propose_expansion(replica_id, self.leader_epoch)

    def propose_shrink(self, now_ms: int, max_lag_ms: int) -> IsrChange | None:
        """Propose an ISR without followers that lag for ``max_lag_ms``; None if none do."""
        if self.leader_id != self.broker_id:
            return None
        return self._members.propose_shrink(
            self.leader_epoch, self.log.end_offset, now_ms, max_lag_ms
        )

    def complete_isr_change(self, change: IsrChange, accepted: bool) -> bool:
        """Put a proposed change in force, or drop it; return whether it is in force now.

        A change of another leader epoch, or one that something else replaced, is dropped.
        """
        if not self._members.complete_change(change, accepted):
            return False
        # A smaller set may be further on; a change that was refused holds nothing back any more.
        self._advance_high_watermark()
        return accepted

    # ---- the leader: deleting records

    def delete_records(self, offset: int) -> int:
        """Move the log's start up; return the offset that the low watermark has to reach.

        Args:
            offset: the first to keep; -1 stands for the high watermark.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER; OFFSET_OUT_OF_RANGE, below -1 or beyond the high
                watermark; POLICY_VIOLATION, where the topic only compacts.
        """
        if self.leader_id != self.broker_id:
            raise self._not_leader()
        if not self.log.config.deletes:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"records of {self.topic_partition} can't be deleted: its cleanup.policy "
                "lacks delete",
            )
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

    def advance_start(self, offset: int) -> bool:
        """Move a leader's log start to ``offset``, or the high watermark; return whether it did."""
        if self.leader_id != self.broker_id:
            return False
        return self.log.delete_up_to(min(offset, self.log.high_watermark))

    def offset_for_leader_epoch(
        self, leader_epoch: int, current_leader_epoch: int | None = None
    ) -> EpochEndOffset:
        """Return the largest epoch at or below ``leader_epoch``, and where it ends here.

        Raises:
            KafkaError: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER.
        """
        if current_leader_epoch is not None and current_leader_epoch != self.leader_epoch:
            raise self._epoch_error(current_leader_epoch)
        if self.leader_id != self.broker_id:
            raise self._not_leader()
        return self.log.end_offset_for_epoch(leader_epoch)

    # ---- the follower

    def next_fetch(self, max_bytes: int) -> PartitionFetch | None:
        """Return this follower's next fetch; None without a leader."""
        if self.leader_id == self.broker_id or self.leader_id == NO_LEADER:
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
            KafkaError: INVALID_RECORD, when the batches don't follow one another;
                KAFKA_STORAGE_ERROR, when the storage is full.
        """
        if (
            self.leader_id == self.broker_id
            or fetch.current_leader_epoch != self.leader_epoch
            or fetch.fetch_offset != self.log.end_offset
        ):
            return False
        return apply_response(self.log, response)

    # ---- errors

    def _epoch_error(self, requested_epoch: int) -> KafkaError:
        old = requested_epoch < self.leader_epoch
        return KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH if old else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self.topic_partition} is in leader epoch {self.leader_epoch} on broker "
            f"{self.broker_id}, the request in {requested_epoch}",
        )

    def _not_leader(self) -> KafkaError:
        return KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"broker {self.broker_id} doesn't lead {self.topic_partition} in epoch "
            f"{self.leader_epoch}; broker {self.leader_id} does, as far as it knows (-1: none)",
        )

    def _unknown_replica(self, replica_id: int, fetch: PartitionFetch) -> KafkaError:
        # With a matching epoch, this leader may not have heard of the replica yet.
        newer = fetch.current_leader_epoch is not None
        return KafkaError(
            ErrorCode.UNKNOWN_LEADER_EPOCH if newer else ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"broker {replica_id} isn't among the replicas {self.replicas} of "
            f"{self.topic_partition}",
        )

    def _check(self) -> None:
        """Assert every invariant of the partition and its log. O(records)."""
        self.log._check()
        assert self.log.epochs.latest <= self.leader_epoch
        self._members._check(self.is_leader, self.leader_epoch)


class HostedPartitions(Protocol):
    """The partitions of a broker, as its delayed requests look them up (`ReplicaManager`)."""

    def partition(self, topic_partition: TopicPartition, /) -> Partition | None:
        """Return the replica here, or None. O(1)."""

    def absence_error(self, topic_partition: TopicPartition, /) -> tuple[ErrorCode, str]:
        """Return the error, and the sentence, for a partition that isn't here."""


def check_size(batch: RecordBatch, config: LogConfig) -> None:
    """Check the size of a batch against the log's limit.

    Raises:
        KafkaError: MESSAGE_TOO_LARGE.
    """
    if batch.size_bytes > config.max_batch_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{batch!r} is larger than the {config.max_batch_bytes} bytes allowed",
        )


def _check_min_insync(topic_partition: TopicPartition, min_insync_replicas: int) -> None:
    if min_insync_replicas < 1:
        raise ValueError(
            f"min_insync_replicas={min_insync_replicas!r} for {topic_partition}: at least 1, "
            "the leader itself"
        )


def _diverges(epoch_end: EpochEndOffset, fetched_epoch: int, fetch_offset: int) -> bool:
    return epoch_end.leader_epoch < fetched_epoch or epoch_end.end_offset < fetch_offset


def apply_response(log: Log, response: PartitionFetchResponse) -> bool:
    """Apply a leader's response to the log of a follower; return False, without a change, for a
    retriable error.

    Raises:
        KafkaError: INVALID_RECORD, when the batches don't follow one another.
    """
    if response.error is not _NONE:
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
    if batches and batches[0].base_offset < log.end_offset:
        first = batches[0]
        if log.end_offset <= response.log_start_offset:
            # The leader deleted up to a point within a batch, and remembers no epoch from before.
            # The last batches of this log may differ from those that it had. All are deleted there.
            log.truncate_fully_and_start_at(log.end_offset)
        elif first.record_count < first.offset_count and log.start_offset != log.end_offset:
            # The leader compacted these offsets; only a follower out of sync may lack them yet.
            log.truncate_to(first.base_offset)
            if log.end_offset != first.base_offset:
                return True  # this log was compacted, too, into other pieces: the next fetch has it
    for batch in batches:
        log.append(batch)
    if response.high_watermark > log.high_watermark:
        log.update_high_watermark(response.high_watermark)
    if response.log_start_offset > log.start_offset:
        log.delete_up_to(min(response.log_start_offset, log.high_watermark))
    return True


def _truncate_to_leader(log: Log, response: PartitionFetchResponse) -> bool:
    """Truncate a log that is out of the leader's range to its end, or begin anew at its start."""
    if response.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
        return False
    if 0 <= response.log_end_offset < log.end_offset:
        log.truncate_to(response.log_end_offset)
        return True
    if response.log_start_offset > log.end_offset:
        log.truncate_fully_and_start_at(response.log_start_offset)
        return True
    return False
