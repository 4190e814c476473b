"""The replicas of one broker, the requests on them, and the events that complete those.

A request is answered through its ``respond``, from inside the call or later, exactly once. What
waits is in three purgatories, watched on its partitions; `partition_registry` lists which event
checks which of them.

The manager has no thread, timer or clock of its own: time comes from the ``clock`` passed in,
timeouts from the timers of the purgatories. How a fetch reads is in `fetch`.

Ground rules
------------
* The manager's parts guard their own state; which brokers live is replaced as a whole.
* The purgatories' checks, ``respond`` and ``on_isr_change`` run without any of their locks held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_OFFSET, EpochEndOffset
from purgatory.kafka.log.log import Log, LogConfig
from purgatory.kafka.log.log_offsets import encode
from purgatory.kafka.log.producer_state import AppendOrigin
from purgatory.kafka.log.record_batch import RecordBatch
from purgatory.kafka.replication.delayed_delete_records import (
    DelayedDeleteRecords,
    DeleteRecordsStatus,
    RespondDeleteRecords,
)
from purgatory.kafka.replication.delayed_fetch import RespondFetch, read_partitions
from purgatory.kafka.replication.delayed_produce import (
    DelayedProduce,
    ProduceStatus,
    RespondProduce,
)
from purgatory.kafka.replication.fetch import FetchRequests
from purgatory.kafka.replication.fetch_session import FollowerSession, RespondInSession
from purgatory.kafka.replication.in_sync_replicas import IsrChange
from purgatory.kafka.replication.partition import Partition
from purgatory.kafka.replication.partition_registry import PartitionRegistry, RequestPurgatories
from purgatory.kafka.replication.requests import (
    FetchParams,
    PartitionFetch,
    PartitionFetchResponse,
    PartitionProduceResponse,
    SessionFetchRequest,
)
from purgatory.kafka.topic_partition import TopicPartition
from timer import Clock

_ACKS_ALL = -1
_ACKS = (_ACKS_ALL, 0, 1)

OnIsrChange = Callable[[TopicPartition, int, tuple[int, ...]], bool | None]


class ReplicaManager:
    """Manages the replicas of one broker: produce, fetch, delete records, replication.

    Args:
        broker_id: this broker.
        clock: the time of followers' fetches.
        produce_purgatory, fetch_purgatory, delete_records_purgatory: hold delayed requests.
        share_fetch_purgatory: holds delayed share fetches; None without share groups.
        min_insync_replicas: how many must be in sync for acks=all.
        max_lag_ms: a follower that lags longer leaves the ISR (``maybe_shrink_isr``).
        log_config: the settings of new logs.
        logs: the logs of a previous process of this broker (``detach_logs``).
        new_log: makes the log of a new replica, where they differ: in place of ``log_config``.
        min_insync_of: likewise, in place of ``min_insync_replicas``.
        is_on_other_broker: whether other brokers have a partition that isn't here: then the error
            is NOT_LEADER_OR_FOLLOWER. Without it, such a partition is unknown.
        on_isr_change: the controller: called with the partition, the leader epoch and the wanted
            ISR, in the order of the assignment. False refuses the change; True or None accepts it,
            and it is in force when the call that caused it returns.

    Raises:
        ValueError: min_insync_replicas below 1, or max_lag_ms below 0.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        clock: Clock,
        produce_purgatory: DelayedOperationPurgatory,
        fetch_purgatory: DelayedOperationPurgatory,
        delete_records_purgatory: DelayedOperationPurgatory,
        share_fetch_purgatory: DelayedOperationPurgatory | None = None,
        min_insync_replicas: int = 1,
        max_lag_ms: int = 30_000,
        log_config: LogConfig | None = None,
        logs: Mapping[TopicPartition, Log] | None = None,
        new_log: Callable[[TopicPartition], Log] | None = None,
        min_insync_of: Callable[[TopicPartition], int] | None = None,
        is_on_other_broker: Callable[[TopicPartition], bool] | None = None,
        on_isr_change: OnIsrChange | None = None,
    ) -> None:
        if min_insync_replicas < 1:
            raise ValueError(f"min_insync_replicas={min_insync_replicas!r}: it is at least 1")
        if max_lag_ms < 0:
            raise ValueError(f"max_lag_ms={max_lag_ms!r}: a lag is 0 ms or more")
        self.broker_id = broker_id
        self.clock = clock
        self.produce_purgatory = produce_purgatory
        self.fetch_purgatory = fetch_purgatory
        self.delete_records_purgatory = delete_records_purgatory
        self.min_insync_replicas = min_insync_replicas
        self.max_lag_ms = max_lag_ms
        self._on_isr_change = on_isr_change
        self._waiting = RequestPurgatories(
            produce_purgatory,
            fetch_purgatory,
            delete_records_purgatory,
            {},
            share_fetch_purgatory,
        )
        self._partitions = PartitionRegistry(
            broker_id,
            min_insync_replicas,
            log_config,
            logs,
            new_log,
            min_insync_of,
            is_on_other_broker,
        )
        self.partition = self._partitions.get
        """Returns the replica here, or None. O(1)."""
        self._fetches = FetchRequests(self._partitions, self._waiting, clock, self._expand_isr)
        self._live_brokers: frozenset[int] | None = None

    # ---- requests

    def append_records(
        self,
        timeout_ms: int,
        required_acks: int,
        entries: Mapping[TopicPartition, RecordBatch | Sequence[RecordBatch]],
        respond: RespondProduce,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> None:
        """Append records, and respond once ``required_acks`` is satisfied.

        Args:
            timeout_ms: the longest wait for replication, in milliseconds.
            required_acks: 0 or 1: respond after the leader's append (the response to 0 is not
                sent); -1: when all in-sync replicas have the records.
            entries: the batches of each partition, appended all or none.
            respond: called with the response of each partition.
            origin: a client, a coordinator or the replication.

        Raises:
            PurgatoryClosedError: it would have to wait, but the purgatory was closed. ``respond``
                is not called then.
        """
        if required_acks not in _ACKS:
            response = PartitionProduceResponse(
                ErrorCode.INVALID_REQUIRED_ACKS,
                message=f"required acks {required_acks!r}: 0, 1 or -1 (all) can be asked for",
            )
            respond(dict.fromkeys(entries, response))
            return
        statuses = []
        thresholds = {}
        for topic_partition, entry in entries.items():
            partition = self._partitions.get(topic_partition)
            if partition is None:
                error, message = self._partitions.absence_error(topic_partition)
                statuses.append(ProduceStatus(topic_partition, error=error, message=message))
                continue
            batches = (entry,) if isinstance(entry, RecordBatch) else entry
            try:
                appended = partition.append_as_leader(batches, required_acks, origin)
            except KafkaError as failure:
                statuses.append(
                    ProduceStatus(topic_partition, error=failure.code, message=failure.message)
                )
                continue
            status = ProduceStatus(topic_partition, partition, appended)
            statuses.append(status)
            if required_acks == _ACKS_ALL:
                status.start_waiting()
                thresholds[topic_partition] = encode(appended.leader_term, appended.required_offset)
            if appended.is_advanced:
                self._waiting.complete_after_high_watermark(partition)
            elif not appended.duplicate:
                self._waiting.after_append(partition)
        if thresholds:
            self._waiting.produces.try_complete_else_watch(
                DelayedProduce(timeout_ms, self._partitions, statuses, respond),
                thresholds=thresholds,
            )
        else:
            respond({status.topic_partition: status.response() for status in statuses})

    def fetch_records(
        self,
        params: FetchParams,
        fetches: Mapping[TopicPartition, PartitionFetch],
        respond: RespondFetch,
    ) -> None:
        """Read records, waiting until there are ``min_bytes`` of them.

        It answers at once when there are enough, when any partition has an error or a diverging
        epoch to tell, when nothing is asked, or when ``max_wait_ms`` is 0.

        Args:
            params: who fetches, and the request's limits.
            fetches: what is asked of each partition. The order decides whose records come first
                when ``max_bytes`` doesn't do for all. Don't change it until the response.
            respond: takes the response of each partition.

        Raises:
            PurgatoryClosedError: it would have to wait, but the purgatory was closed. ``respond``
                is not called then.
        """
        self._fetches.fetch(params, fetches, respond)

    def fetch_in_session(
        self, params: FetchParams, request: SessionFetchRequest, respond: RespondInSession
    ) -> None:
        """Read records for a follower's incremental fetch.

        It waits, or not, as in ``fetch_records``, for the records of all partitions of the session,
        and costs what has changed (`fetch_session`).

        Args:
            params: as for ``fetch_records``; it is a follower's.
            request: the session, and what changed.
            respond: takes the response: of the partitions with news; or
                FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH, and the follower is to
                begin another session.

        Raises:
            PurgatoryClosedError: as ``fetch_records`` does.
        """
        self._fetches.fetch_in_session(params, request, respond)

    def end_session_wait(self, follower_id: int) -> None:
        """Have a follower's fetch that waits respond now: it has something else to request."""
        for session in self.fetch_sessions():
            if session.follower_id == follower_id and session.operation is not None:
                session.operation.force_complete()

    def fetch_sessions(self) -> tuple[FollowerSession, ...]:
        """Return the followers' fetch sessions, the watch keys of their fetches."""
        return tuple(self._waiting.sessions.values())

    def read(
        self, params: FetchParams, fetches: Mapping[TopicPartition, PartitionFetch]
    ) -> dict[TopicPartition, PartitionFetchResponse]:
        """Read available records, without recording a follower's fetch. Never waits."""
        return read_partitions(self._partitions, params, fetches)[0]

    def delete_records(
        self,
        timeout_ms: int,
        offsets: Mapping[TopicPartition, int],
        respond: RespondDeleteRecords,
    ) -> None:
        """Delete records before the offsets, and respond once every live replica has.

        Args:
            timeout_ms: the longest wait for the followers, in milliseconds.
            offsets: the first offset to keep; -1 stands for the high watermark.
            respond: takes the response of each partition.

        Raises:
            PurgatoryClosedError: it would have to wait, but the purgatory was closed. ``respond``
                is not called then.
        """
        statuses = [
            self._delete_on_leader(topic_partition, offset)
            for topic_partition, offset in offsets.items()
        ]
        waiting = []
        for status in statuses:
            if status.error is ErrorCode.NONE:
                # What a read-committed fetch waits behind may be gone: a transaction that is open.
                partition = self._partitions.get(status.topic_partition)
                if partition is not None:
                    self._waiting.after_append(partition)
                # The leader's own start may have been the least one.
                self._waiting.deletions.check_and_complete(status.topic_partition)
                if status.low_watermark < status.required_offset:
                    status.start_waiting()
                    waiting.append(status.topic_partition)
        if waiting:
            operation = DelayedDeleteRecords(
                timeout_ms, self._partitions, self._low_watermark, statuses, respond
            )
            self._waiting.deletions.try_complete_else_watch(operation, waiting)
        else:
            respond({status.topic_partition: status.response() for status in statuses})

    def _delete_on_leader(
        self, topic_partition: TopicPartition, offset: int
    ) -> DeleteRecordsStatus:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            error, message = self._partitions.absence_error(topic_partition)
            return DeleteRecordsStatus(topic_partition, offset, UNKNOWN_OFFSET, error, message)
        try:
            required_offset = partition.delete_records(offset)
        except KafkaError as failure:
            return DeleteRecordsStatus(
                topic_partition, offset, UNKNOWN_OFFSET, failure.code, failure.message
            )
        low_watermark = self._low_watermark(partition)
        if low_watermark is None:
            low_watermark = UNKNOWN_OFFSET  # the wait finds out that another leads now
        return DeleteRecordsStatus(topic_partition, required_offset, low_watermark)

    def _low_watermark(self, partition: Partition) -> int | None:
        return partition.low_watermark_if_leader(self._live_brokers)

    # ---- leadership and liveness

    def become_leader(
        self,
        topic_partition: TopicPartition,
        leader_epoch: int,
        isr: Collection[int],
        replicas: Collection[int],
    ) -> bool:
        """Lead a partition, with a new replica if there is none here.

        Args:
            topic_partition: which.
            leader_epoch: from the controller, higher at each change.
            isr: who is in sync, this broker among them.
            replicas: who is assigned, in order.

        Returns:
            False, without a change, if the epoch is stale or the disk failed.

        Raises:
            ValueError: this broker isn't in the ISR, or a member of it isn't assigned.
        """
        now_ms = self.clock.now_ms()
        return self._change_role(
            topic_partition,
            lambda partition: partition.make_leader(leader_epoch, isr, replicas, now_ms),
        )

    def become_follower(
        self,
        topic_partition: TopicPartition,
        leader_id: int,
        leader_epoch: int,
        replicas: Collection[int] = (),
    ) -> bool:
        """Become a follower, with a new replica if this broker has none.

        Args:
            topic_partition: which.
            leader_id: the leader; -1: there is none.
            leader_epoch: from the controller, higher at each change.
            replicas: the assigned replicas, in order; empty: as before.

        Returns:
            False, without a change, if the epoch is stale or the disk failed.

        Raises:
            ValueError: the leader is this broker.
        """
        return self._change_role(
            topic_partition,
            lambda partition: partition.make_follower(leader_id, leader_epoch, replicas),
        )

    def _change_role(
        self, topic_partition: TopicPartition, change: Callable[[Partition], bool]
    ) -> bool:
        changed = self._partitions.change_role(topic_partition, change)
        if changed:
            self._waiting.check_all(topic_partition, self._partitions.get(topic_partition))
        return changed

    def configure(
        self, topic_partition: TopicPartition, config: LogConfig, min_insync_replicas: int
    ) -> None:
        """Apply new settings at once; a partition that isn't here is ignored.

        Retention that takes more away takes it now, not at its next turn.

        Raises:
            ValueError: as for a new replica and a new log.
        """
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return
        is_advanced = partition.configure(config, min_insync_replicas)
        if partition.apply_retention() or is_advanced:
            self._waiting.complete_after_high_watermark(partition)

    def advance_start(self, topic_partition: TopicPartition, offset: int) -> None:
        """Delete records below ``offset`` for retention; followers do so with their next fetch.

        A partition that isn't here, or isn't led here, is no error, nor is an offset beyond the
        high watermark: nothing more is deleted than is committed.
        """
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.advance_start(offset):
            self._waiting.complete_after_high_watermark(partition)

    def stop_replica(self, topic_partition: TopicPartition, delete: bool = False) -> None:
        """Stop a replica.

        Args:
            topic_partition: of the replica; an unknown one is ignored.
            delete: whether to delete the log; otherwise a later replica of the partition reuses it.
        """
        if self._partitions.stop(topic_partition, delete):
            self._waiting.check_all_and_forget(topic_partition)

    def delete_topic(self, topic: str) -> None:
        """Drop all of a topic's replicas with their logs: its partitions are unknown from now."""
        for topic_partition in self._partitions.delete_topic(topic):
            self._waiting.check_all_and_forget(topic_partition)

    def mark_offline(self, topic_partition: TopicPartition) -> None:
        """Take a replica offline after a disk failure: requests get KAFKA_STORAGE_ERROR."""
        if self._partitions.mark_offline(topic_partition):
            self._waiting.check_all_and_forget(topic_partition)

    def maybe_shrink_isr(self) -> None:
        """Remove lagging followers from the ISRs. Call it every half of ``max_lag_ms``."""
        now_ms = self.clock.now_ms()
        for partition in self.partitions():
            self._change_isr(partition, partition.propose_shrink(now_ms, self.max_lag_ms))

    def _expand_isr(self, partition: Partition, replica_id: int) -> None:
        self._change_isr(partition, partition.propose_expansion(replica_id))

    def _change_isr(self, partition: Partition, change: IsrChange | None) -> None:
        if change is None:
            return
        topic_partition = partition.topic_partition
        accepted = False
        try:
            propose = self._on_isr_change
            accepted = propose is None or (
                propose(topic_partition, change.leader_epoch, change.isr) is not False
            )
        finally:
            if partition.complete_isr_change(change, accepted):
                self._waiting.check_all(topic_partition, partition)
            else:
                # It holds the watermark back no more. Nobody else is told: a follower that was
                # refused would ask again at once, and be refused again, for ever.
                self._waiting.complete_after_high_watermark(partition)

    def set_live_brokers(self, broker_ids: Collection[int] | None) -> None:
        """Set the brokers whose log start offsets count for low watermarks; None: all brokers."""
        self._live_brokers = None if broker_ids is None else frozenset(broker_ids)
        for partition in self.partitions():
            self.delete_records_purgatory.check_and_complete(partition.topic_partition)

    def logs(self) -> dict[TopicPartition, Log]:
        """Return all logs here, including unassigned ones of a former process."""
        return self._partitions.logs()

    def detach_logs(self) -> dict[TopicPartition, Log]:
        """Return the logs and remove all replicas, as when a process ends and its disks remain.

        Delayed requests are not completed.
        """
        return self._partitions.detach_logs()

    # ---- the follower's side

    def follower_fetch(
        self, topic_partition: TopicPartition, max_bytes: int = 1024 * 1024
    ) -> PartitionFetch | None:
        """Return a follower's next fetch; None without a leader."""
        partition = self._partitions.get(topic_partition)
        return None if partition is None else partition.next_fetch(max_bytes)

    def append_as_follower(
        self,
        topic_partition: TopicPartition,
        fetch: PartitionFetch,
        response: PartitionFetchResponse,
    ) -> bool:
        """Apply the leader's response to ``fetch``: append, update the high watermark, or truncate.

        Returns:
            False, without a change, if the response is a retriable error, or stale: this replica's
            epoch or log end has changed since ``fetch``.

        Raises:
            KafkaError: INVALID_RECORD, when the batches don't follow one another.
        """
        partition = self._partitions.get(topic_partition)
        if partition is None or not partition.append_as_follower(fetch, response):
            return False
        if self.fetch_purgatory.watched:  # a consumer may read from this replica
            self._waiting.after_append(partition)
        return True

    # ---- looking

    def partitions(self) -> list[Partition]:
        """Return all replicas here."""
        return self._partitions.all()

    def absence_error(self, topic_partition: TopicPartition) -> tuple[ErrorCode, str]:
        """Return the error, and the sentence, for a partition that isn't here."""
        return self._partitions.absence_error(topic_partition)

    def offset_for_leader_epoch(
        self,
        topic_partition: TopicPartition,
        leader_epoch: int,
        current_leader_epoch: int | None = None,
    ) -> EpochEndOffset:
        """Return the largest epoch at or below ``leader_epoch``, and where it ends here.

        Raises:
            KafkaError: the partition isn't here, isn't led here, or is in another epoch than
                ``current_leader_epoch``.
        """
        partition = self._partitions.get(topic_partition)
        if partition is None:
            raise KafkaError(*self.absence_error(topic_partition))
        return partition.offset_for_leader_epoch(leader_epoch, current_leader_epoch)

    def _check(self) -> None:
        """Assert every invariant of the manager, its partitions and their logs. O(records)."""
        self._partitions._check()
        self._waiting._check()
