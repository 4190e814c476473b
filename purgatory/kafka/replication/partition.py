"""A partition as its leader has it: appends, reads, the high watermark, deletions, the ISR.

A record is committed when every replica of the in-sync set has it: the high watermark is the lowest
log end offset of the set. Followers report theirs by the offset that they fetch from, so fetches
move the high watermark, and what it passes completes waiting produces.

Ground rules
------------
* As for every `replica`: one lock, a leaf, guards all.
* A method that may complete delayed operations returns that (``is_advanced``, or True); the caller
  checks the purgatories after the lock is released. This class does not use the purgatories.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.log.leader_epoch_cache import EpochEndOffset
from purgatory.kafka.log.log import Log, LogConfig
from purgatory.kafka.log.log_offsets import EndPositions, FetchIsolation
from purgatory.kafka.log.producer_state import AppendedBatch, AppendOrigin
from purgatory.kafka.log.record_batch import RecordBatch
from purgatory.kafka.replication.in_sync_replicas import Follower, IsrChange
from purgatory.kafka.replication.log_read import (
    FENCED,
    NOT_LEADER,
    bytes_for_fetch,
    read_for_fetch,
    refusal,
    visible_end,
)
from purgatory.kafka.replication.replica import NO_LEADER, Replica, check_min_insync
from purgatory.kafka.replication.requests import (
    HIGH_WATERMARK_OFFSET,
    PartitionFetch,
    PartitionFetchResponse,
)


class LeaderAppend(NamedTuple):
    """The result of an append.

    ``required_offset`` is what the high watermark must reach for acks=all, ``leader_term`` the term
    in which that offset means these records, ``is_advanced`` whether the high watermark moved.
    """

    base_offset: int
    required_offset: int
    log_start_offset: int
    leader_term: int
    is_advanced: bool
    duplicate: bool


def find_duplicate(
    log: Log, batches: Sequence[RecordBatch], origin: AppendOrigin
) -> AppendedBatch | None:
    """Validate batches; return the original append of a retry, None for new records.

    Raises:
        KafkaError: MESSAGE_TOO_LARGE, INVALID_RECORD, or an error of the producer's state.
    """
    if not batches:
        raise KafkaError(ErrorCode.INVALID_RECORD, "an append without a batch")
    for batch in batches:
        check_size(batch, log.config)
        if len(batches) > 1 and (origin is AppendOrigin.CLIENT or batch.producer_id >= 0):
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"{len(batches)} batches in one append to a partition: a producer sends exactly "
                "one, since what becomes of a second one could not be answered",
            )
        if batch.producer_id >= 0:
            return log.producers.find_duplicate(batch, origin, log.start_offset == 0)
        if batch.transactional or batch.control is not None:
            raise KafkaError(
                ErrorCode.INVALID_RECORD, f"{batch!r} is transactional without a producer id"
            )
    return None


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


_NONE = ErrorCode.NONE
_LOG_END = FetchIsolation.LOG_END


class Partition(Replica):
    """A replica on broker ``broker_id``, with all that it does while it leads.

    A follower refuses these with NOT_LEADER_OR_FOLLOWER. Attributes and errors as for `Replica`.
    """

    __slots__ = ()

    def low_watermark_if_leader(self, live_brokers: Collection[int] | None = None) -> int | None:
        """Return the least log start offset of the live replicas, -1 if one is unknown.

        None says that this replica doesn't lead. O(replicas).

        Args:
            live_brokers: those that count, beside this one; None counts all.
        """
        with self._lock:
            if self.leader_id != self.broker_id:
                return None
            low = self.log.start_offset
            for follower in self._members.followers.values():
                if live_brokers is None or follower.broker_id in live_brokers:
                    low = min(low, follower.log_start_offset)
            return low

    # ---- beginning to lead, and what is committed

    def configure(self, config: LogConfig, min_insync_replicas: int) -> bool:
        """Apply new settings; return whether the high watermark moved by them.

        Raises:
            ValueError: as for a new replica and a new log.
        """
        check_min_insync(self.topic_partition, min_insync_replicas)
        with self._lock:
            self.log.configure(config)
            self.min_insync_replicas = min_insync_replicas
            return self.leader_id == self.broker_id and self._advance_high_watermark()

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
        with self._lock:
            is_same_epoch = leader_epoch == self.leader_epoch
            if leader_epoch < self.leader_epoch or (
                is_same_epoch and self.leader_id not in (self.broker_id, NO_LEADER)
            ):
                return False
            if not (is_same_epoch and self.is_leader):
                if not self.is_leader:
                    self.leader_id = self.broker_id
                    self.leader_term = next(self._terms)
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

    @property
    def effective_min_isr(self) -> int:
        """``min_insync_replicas``, but no more than there are replicas."""
        return min(self.min_insync_replicas, len(self._members.replicas))

    def _advance_high_watermark(self) -> bool:
        """Set the high watermark to the least log end offset of the maximal ISR, if that is more.

        It is less while followers are still unknown to a new leader: it never goes back. It stands
        still while fewer than ``effective_min_isr`` are in sync, as in Kafka from 3.7 on (KIP-966):
        what so few have is not committed.
        """
        members, log = self._members, self.log
        if len(members.isr) < self.effective_min_isr:
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
            origin: who appends.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, MESSAGE_TOO_LARGE,
                INVALID_RECORD, or an error of the producer's sequence numbers. Nothing is
                appended.
        """
        with self._lock:
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
            original = find_duplicate(log, batches, origin)
            if original is not None:
                return LeaderAppend(
                    original.first_offset,
                    original.next_offset,
                    log.start_offset,
                    self.leader_term,
                    False,
                    True,
                )
            base_offset = log.end_offset
            try:
                for batch in batches:
                    log.append(batch.with_offset(log.end_offset, self.leader_epoch))
            except KafkaError:  # its disk is full: none is kept
                if log.end_offset > base_offset:
                    log.truncate_to(base_offset)
                raise
            # With a follower in sync, that one holds the high watermark back.
            is_advanced = not self._members.in_sync_followers and self._advance_high_watermark()
            return LeaderAppend(
                base_offset, log.end_offset, log.start_offset, self.leader_term, is_advanced, False
            )

    def progress_of_append(self, required_offset: int, leader_term: int) -> ErrorCode | None:
        """Say how an append with acks=all stands: None while it is not replicated enough.

        Args:
            required_offset: what the high watermark must reach.
            leader_term: the term that the append was made in. In a later one, other records may
                have that offset.
        """
        with self._lock:
            if self.leader_id != self.broker_id or self.leader_term != leader_term:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            if self.log.high_watermark < required_offset:
                return None
            if len(self._members.maximal_isr) < self.effective_min_isr:
                return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            return _NONE

    # ---- the leader: serving fetches

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
            fetch: what is requested.
            isolation: how far to read.
            max_bytes: what is left of the request's ``max_bytes``; the fetch's own holds too.
            min_one_batch: the first batch comes even if it is larger.
            from_follower: whether to read where this broker doesn't lead, too.
        """
        with self._lock:
            try:
                self._check_readable(fetch, from_follower)
                return read_for_fetch(
                    self.log, self.leader_epoch, fetch, isolation, max_bytes, min_one_batch
                )
            except KafkaError as error:
                return refusal(self.log, error)

    def fetch_as_follower(
        self,
        fetch: PartitionFetch,
        replica_id: int,
        max_bytes: int,
        min_one_batch: bool,
        now_ms: int,
    ) -> tuple[PartitionFetchResponse, bool, bool]:
        """Read for a follower, and note how far it is.

        The response carries the high watermark from before: the follower learns what its own fetch
        committed by its next one, as in Kafka.

        Returns:
            The response; whether the high or low watermark moved; whether the follower qualifies
            for the ISR now.
        """
        with self._lock:
            try:
                follower = self._members.followers.get(replica_id)
                if follower is None:
                    self._check_readable(fetch)
                    raise self._unknown_replica(replica_id, fetch)
                self._check_readable(fetch)
                response = read_for_fetch(
                    self.log, self.leader_epoch, fetch, _LOG_END, max_bytes, min_one_batch
                )
            except KafkaError as error:
                return refusal(self.log, error), False, False
            if response.diverging_epoch is not None:
                return response, False, False
            is_advanced, may_expand_isr = self._update_follower(
                follower, fetch.fetch_offset, fetch.log_start_offset, now_ms
            )
            return response, is_advanced, may_expand_isr

    def record_fetch(self, replica_id: int, now_ms: int) -> None:
        """Record a fetch from the log end by a follower that had caught up.

        Call it after an append that the follower has not fetched yet.
        """
        with self._lock:
            follower = self._members.followers.get(replica_id)
            if (
                follower is not None
                and follower.log_end_offset >= follower.last_fetch_leader_end_offset
            ):
                follower.last_fetch_ms = max(follower.last_fetch_ms, now_ms)
                follower.last_caught_up_ms = max(follower.last_caught_up_ms, now_ms)

    def fetch_position(self, fetch_offset: int) -> tuple[int, int, int]:
        """Return the term, the segment (its base offset) and the byte position that a fetch stands
        at."""
        with self._lock:
            return self.leader_term, *self.log.location_of(fetch_offset)

    def drain_end_changes(self) -> EndPositions | None:
        """Return which ends of the log moved since the last call, None if all fetches must be
        looked at. O(log n)."""
        with self._lock:
            if self.leader_id != self.broker_id:
                return None
            return self._log_ends.advance(self.log, self.leader_term)

    def visible_ends(self, isolation: FetchIsolation) -> tuple[int, int]:
        """Return the offset that a fetch can't see beyond, and the base of the last segment.

        Neither is of an append that may yet be undone.
        """
        with self._lock:
            return visible_end(self.log, isolation), self.log.active_base_offset

    def fetch_progress(
        self,
        fetch: PartitionFetch,
        isolation: FetchIsolation,
        leader_term: int,
        segment_base: int,
        position: int,
        from_follower: bool = False,
    ) -> int:
        """Return the bytes available to a waiting fetch, or the reason to complete it.

        Args:
            fetch: what was asked.
            isolation: how far it may see.
            leader_term, segment_base, position: where it stood when it began to wait
                (``fetch_position``). A later term's log may be another one.
            from_follower: whether it may wait where this broker doesn't lead, too.

        Returns:
            0 or more bytes; NOT_LEADER, FENCED, OUT_OF_PLACE or DIVERGED. O(log n).
        """
        with self._lock:
            epoch = fetch.current_leader_epoch
            if epoch is not None and epoch != self.leader_epoch:
                return FENCED
            leads = self.leader_id == self.broker_id
            if not (leads or from_follower) or self.leader_term != leader_term:
                return NOT_LEADER
            return bytes_for_fetch(
                self.log, self.leader_epoch, fetch, isolation, segment_base, position
            )

    def _check_readable(self, fetch: PartitionFetch, from_follower: bool = False) -> None:
        epoch = fetch.current_leader_epoch
        if epoch is not None and epoch != self.leader_epoch:
            raise self._epoch_error(epoch)
        if self.leader_id != self.broker_id and not from_follower:
            raise self._not_leader()

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

    # ---- the leader: the in-sync set

    def propose_expansion(self, replica_id: int) -> IsrChange | None:
        """Propose to add a follower to the ISR; return None if it does not qualify."""
        with self._lock:
            follower = self._members.followers.get(replica_id)
            if follower is None or not self._members.may_expand(follower, self._required_offset()):
                return None
            return self._members.propose_expansion(replica_id, self.leader_epoch)

    def propose_shrink(self, now_ms: int, max_lag_ms: int) -> IsrChange | None:
        """Propose an ISR without followers that lag for ``max_lag_ms``; None if none do."""
        with self._lock:
            if self.leader_id != self.broker_id:
                return None
            return self._members.propose_shrink(
                self.leader_epoch, self.log.end_offset, now_ms, max_lag_ms
            )

    def complete_isr_change(self, change: IsrChange, accepted: bool) -> bool:
        """Put a proposed change in force, or drop it; return whether it is in force now.

        A change of another leader epoch, or one that something else replaced, is dropped.
        """
        with self._lock:
            if not self._members.complete_change(change, accepted):
                return False
            # A smaller set may be further on; one that was refused holds nothing back any more.
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
        with self._lock:
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
        with self._lock:
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
        with self._lock:
            if current_leader_epoch is not None and current_leader_epoch != self.leader_epoch:
                raise self._epoch_error(current_leader_epoch)
            if self.leader_id != self.broker_id:
                raise self._not_leader()
            return self.log.end_offset_for_epoch(leader_epoch)

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
            f"{self.leader_epoch}; broker {self.leader_id} does, as far as it knows (-1: nobody)",
        )
