"""The replicas of one broker, the requests on them, and the events that complete those.

A request is answered through its ``respond``, from inside the call or later, exactly once. Requests
that wait are in three purgatories, watched on their partitions, and each event checks those that it
may complete:

    records appended                 fetches: those whose bytes are there
    high watermark moved             produces whose records are below it, fetches as above
    high or low watermark moved      deletions on the partition
    leader changed, replica stopped,
    topic deleted, ISR changed       all that wait on the partition
    another broker died or lives     deletions on the partition

Operations are watched so:

    produces     until the high watermark is there: a threshold on the partition
    fetches      until bytes are there: a threshold on the end of the log that the fetch sees
                 (`fetch_thresholds`); if they are counted over several partitions, for any event on
                 each of them; a follower's, until enough is pending in its session
    deletions,
    share fetches for any event on the partition

A follower fetches from its log end: its fetch offset moves the high watermark, and may bring the
follower into the ISR.

A stopped replica leaves its log behind, and finds it again when it comes back. A replica whose disk
failed is offline for good.

The manager has no thread, timer or clock of its own: time comes from the ``clock`` passed in,
timeouts from the timers of the purgatories.

Ground rules
------------
* Only the broker's loop calls the manager: there is one thread, and no lock but the purgatories'
  own. ``respond`` and ``on_isr_change`` may call it again, from inside a call.
* Events are announced after they happened, and an operation is checked once more after it was put
  on the lists: an event need not be announced while no operation is on a list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count

from purgatory.core.errors import PurgatoryClosedError
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.log.fetch_thresholds import UNCHANGED, FetchIsolation, end_keys
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_OFFSET, EpochEndOffset
from purgatory.kafka.log.log import WEEK_MS, Log, LogConfig
from purgatory.kafka.log.producer_state import AppendOrigin
from purgatory.kafka.log.record_batch import RecordBatch
from purgatory.kafka.replication.delayed_delete_records import (
    DelayedDeleteRecords,
    DeleteRecordsStatus,
    RespondDeleteRecords,
)
from purgatory.kafka.replication.delayed_fetch import (
    DelayedFetch,
    FetchPartitionStatus,
    Reads,
    RespondFetch,
    absent_response,
    fetch_isolation,
    read_partitions,
)
from purgatory.kafka.replication.delayed_produce import (
    DelayedProduce,
    ProduceStatus,
    RespondProduce,
)
from purgatory.kafka.replication.fetch_session import (
    FIRST_EPOCH,
    DelayedSessionFetch,
    FollowerSession,
    RespondInSession,
)
from purgatory.kafka.replication.in_sync_replicas import IsrChange
from purgatory.kafka.replication.partition import Partition
from purgatory.kafka.replication.requests import (
    FetchParams,
    PartitionFetch,
    PartitionFetchResponse,
    PartitionProduceResponse,
    SessionFetchRequest,
    SessionFetchResponse,
)
from purgatory.kafka.topic_partition import TopicPartition
from timer import Clock

_NONE = ErrorCode.NONE
_ACKS_ALL = -1
_ACKS = (_ACKS_ALL, 0, 1)


def _is_long(time_ms: int | None) -> bool:
    return time_ms is not None and time_ms >= WEEK_MS


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
        self.share_fetch_purgatory = share_fetch_purgatory
        self._on_isr_change = on_isr_change
        self._new_log = new_log or (lambda _: Log(log_config))
        self._min_insync_of = min_insync_of or (lambda _: min_insync_replicas)
        self._is_on_other_broker = is_on_other_broker or (lambda _: False)
        self._partitions: dict[TopicPartition, Partition] = {}
        # Reads and delayed operations call this often: the dict's own method spares a call.
        self.partition: Callable[[TopicPartition], Partition | None] = self._partitions.get
        """Returns the replica here, or None. O(1)."""
        self._logs: dict[TopicPartition, Log] = dict(logs or {})
        # Partitions that were here: stopped, or on a disk that failed.
        self._stopped: set[TopicPartition] = set(self._logs)
        self._offline: set[TopicPartition] = set()
        self._sessions: dict[int, FollowerSession] = {}
        self._waiting_sessions: set[FollowerSession] = set()
        self._session_ids = count(1)
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
            PurgatoryClosedError: the request would have to wait, but the purgatory was closed.
                ``respond`` is not called then.
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
            partition = self.partition(topic_partition)
            if partition is None:
                error, message = self.absence_error(topic_partition)
                statuses.append(ProduceStatus(topic_partition, error=error, message=message))
                continue
            batches = (entry,) if isinstance(entry, RecordBatch) else entry
            try:
                appended = partition.append_as_leader(batches, required_acks, origin)
            except KafkaError as failure:
                refused = ProduceStatus(
                    topic_partition, partition, error=failure.code, message=failure.message
                )
                statuses.append(refused)
                continue
            status = ProduceStatus(topic_partition, partition, appended)
            statuses.append(status)
            if required_acks == _ACKS_ALL:
                status.start_waiting()
                thresholds[topic_partition] = appended.required_offset
            if appended.is_advanced:
                self._complete_after_high_watermark(partition)
            elif not appended.duplicate:
                self._complete_after_append(partition)
        if thresholds:
            self.produce_purgatory.try_complete_else_watch(
                DelayedProduce(timeout_ms, self, statuses, respond),
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

        The response comes at once when there are enough, when any partition has an error or a
        diverging epoch, when no partition is requested, or when ``max_wait_ms`` is 0.

        Args:
            params: the requester, and the request's limits.
            fetches: the requested position of each partition. The order decides whose records come
                first when ``max_bytes`` is not enough for all. Don't change it until the response.
            respond: called with the response of each partition.

        Raises:
            PurgatoryClosedError: the request would have to wait, but the purgatory was closed.
                ``respond`` is not called then.
        """
        if params.replica_id >= 0:
            now_ms = self.clock.now_ms()
            responses, size_bytes, is_immediate = self._read_for_follower(params, fetches, now_ms)
        else:
            responses, size_bytes, is_immediate = read_partitions(self, params, fetches)
        if is_immediate or size_bytes >= params.min_bytes or params.max_wait_ms <= 0 or not fetches:
            respond(responses)
            return
        isolation = fetch_isolation(params)
        statuses = self._fetch_statuses(fetches, isolation)
        if statuses is None:
            # A request that this one completed removed a replica.
            respond(read_partitions(self, params, fetches)[0])
            return
        operation = DelayedFetch(params, isolation, self, fetches, statuses, respond)
        thresholds = operation.thresholds()
        self.fetch_purgatory.try_complete_else_watch(
            operation, fetches if thresholds is None else (), thresholds
        )

    def _fetch_statuses(
        self, fetches: Mapping[TopicPartition, PartitionFetch], isolation: FetchIsolation
    ) -> list[FetchPartitionStatus] | None:
        """Return the status of each fetch; None if this broker has no replica of a partition."""
        statuses = []
        for topic_partition, fetch in fetches.items():
            partition = self.partition(topic_partition)
            if partition is None:
                return None
            statuses.append(FetchPartitionStatus(partition, fetch, isolation))
        return statuses

    def _read_for_follower(
        self, params: FetchParams, fetches: Mapping[TopicPartition, PartitionFetch], now_ms: int
    ) -> Reads:
        """Read as for a consumer, and advance the watermarks and the ISR by its offsets."""
        replica_id, max_bytes = params.replica_id, params.max_bytes
        # Without records a fetch waits, and needs no response so far.
        may_wait = len(fetches) == 1 and params.min_bytes > 0 and params.max_wait_ms > 0
        responses = {}
        size_bytes = 0
        is_immediate = False
        advanced = []
        joining = []
        for topic_partition, fetch in fetches.items():
            partition = self.partition(topic_partition)
            if partition is None:
                response = absent_response(self, topic_partition)
            else:
                response, is_advanced, may_expand_isr = partition.fetch_as_follower(
                    fetch, replica_id, max_bytes - size_bytes, size_bytes == 0, now_ms, may_wait
                )
                if is_advanced:
                    advanced.append(partition)
                if may_expand_isr:
                    joining.append(partition)
            responses[topic_partition] = response
            size_bytes += response.size_bytes
            if response.error is not _NONE or response.diverging_epoch is not None:
                is_immediate = True
        for partition in advanced:
            self._complete_after_high_watermark(partition)
        for partition in joining:
            self._change_isr(partition, partition.propose_expansion(replica_id))
        return responses, size_bytes, is_immediate

    def fetch_in_session(
        self, params: FetchParams, request: SessionFetchRequest, respond: RespondInSession
    ) -> None:
        """Read records for a follower's incremental fetch.

        The fetch waits as in ``fetch_records``, for the records of all partitions of the session;
        it costs time for those that changed (`fetch_session`).

        Args:
            params: a follower's, as for ``fetch_records``.
            request: the session, and the partitions that changed.
            respond: called with the response: the partitions with news; or
                FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH, after which the follower
                begins another session.

        Raises:
            PurgatoryClosedError: as ``fetch_records`` does.
        """
        session, error = self._find_session(params.replica_id, request)
        if session is None:
            respond(SessionFetchResponse(error))
            return
        if session.operation is not None:
            session.operation.force_complete()
        now_ms, min_bytes = self.clock.now_ms(), params.min_bytes
        fetches = session.begin_fetch(request, min_bytes > 1, now_ms)
        responses, size_bytes, is_immediate = self._read_for_follower(params, fetches, now_ms)
        if is_immediate or size_bytes >= min_bytes or params.max_wait_ms <= 0:
            respond(session.respond(responses, params))
            return
        operation = DelayedSessionFetch(params, self, session, respond)
        session.begin_wait(responses, operation)
        sessions = self._sessions  # the longest waiting one is notified first
        sessions[session.session_id] = sessions.pop(session.session_id)
        try:
            self.fetch_purgatory.try_complete_else_watch(operation, (session,))
        except PurgatoryClosedError:
            session.end_wait(operation)
            raise

    def _find_session(
        self, follower_id: int, request: SessionFetchRequest
    ) -> tuple[FollowerSession | None, ErrorCode]:
        """Find the session of a request, or begin it; or return the error."""
        epoch, sessions = request.session_epoch, self._sessions
        if epoch == FIRST_EPOCH:
            for other in tuple(sessions.values()):
                if other.follower_id == follower_id:
                    other.is_closed = True
                    if other.operation is None:
                        del sessions[other.session_id]
            session = FollowerSession(
                next(self._session_ids), follower_id, self, self._waiting_sessions
            )
            sessions[session.session_id] = session
            return session, _NONE
        cached_session = sessions.get(request.session_id)
        if (
            cached_session is None
            or cached_session.is_closed
            or cached_session.follower_id != follower_id
        ):
            return None, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if not cached_session.accept_epoch(epoch):
            return None, ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return cached_session, _NONE

    def end_session_wait(self, follower_id: int) -> None:
        """Complete a follower's waiting fetch now: the follower has something else to request."""
        for session in self.fetch_sessions():
            if session.follower_id == follower_id and session.operation is not None:
                session.operation.force_complete()

    def fetch_sessions(self) -> tuple[FollowerSession, ...]:
        """Return the followers' fetch sessions, under which their fetches are watched."""
        return tuple(self._sessions.values())

    def read(
        self, params: FetchParams, fetches: Mapping[TopicPartition, PartitionFetch]
    ) -> dict[TopicPartition, PartitionFetchResponse]:
        """Read available records, without recording a follower's fetch. Never waits."""
        return read_partitions(self, params, fetches)[0]

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
            respond: called with the response of each partition.

        Raises:
            PurgatoryClosedError: the request would have to wait, but the purgatory was closed.
                ``respond`` is not called then.
        """
        statuses = [
            self._delete_on_leader(topic_partition, offset)
            for topic_partition, offset in offsets.items()
        ]
        waiting = []
        for status in statuses:
            if status.error is ErrorCode.NONE:
                # A read-committed fetch may wait for an open transaction that was deleted now.
                partition = self.partition(status.topic_partition)
                if partition is not None:
                    self._complete_after_append(partition)
                # The leader's own start may have been the least one.
                self.delete_records_purgatory.check_and_complete(status.topic_partition)
                if status.low_watermark < status.required_offset:
                    status.start_waiting()
                    waiting.append(status.topic_partition)
        if waiting:
            operation = DelayedDeleteRecords(
                timeout_ms, self, self._low_watermark, statuses, respond
            )
            self.delete_records_purgatory.try_complete_else_watch(operation, waiting)
        else:
            respond({status.topic_partition: status.response() for status in statuses})

    def _delete_on_leader(
        self, topic_partition: TopicPartition, offset: int
    ) -> DeleteRecordsStatus:
        partition = self.partition(topic_partition)
        if partition is None:
            error, message = self.absence_error(topic_partition)
            return DeleteRecordsStatus(topic_partition, offset, UNKNOWN_OFFSET, error, message)
        try:
            required_offset = partition.delete_records(offset)
        except KafkaError as failure:
            return DeleteRecordsStatus(
                topic_partition, offset, UNKNOWN_OFFSET, failure.code, failure.message
            )
        low_watermark = self._low_watermark(partition)
        if low_watermark is None:
            low_watermark = UNKNOWN_OFFSET  # the wait will find that another broker leads
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
            isr: the in-sync replicas, including this broker.
            replicas: the assigned replicas, in order.

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
        """Apply ``change`` to the replica, a new one if there is none; return its result.

        If it is False, or ``change`` raises, a new replica is discarded.
        """
        if topic_partition in self._offline:
            return False
        partition = self.partition(topic_partition)
        was_leader = partition is not None and partition.is_leader
        if partition is None:
            partition = self._new_partition(topic_partition)
        if not change(partition):
            return False
        self._partitions[topic_partition] = partition
        self._logs[topic_partition] = partition.log
        self._stopped.discard(topic_partition)
        if partition.is_leader and not was_leader:
            self._forget_thresholds(topic_partition)
        self._check_all(topic_partition, partition)
        return True

    def _new_partition(self, topic_partition: TopicPartition) -> Partition:
        log = self._logs.get(topic_partition)
        return Partition(
            topic_partition,
            self.broker_id,
            self._new_log(topic_partition) if log is None else log,
            self._min_insync_of(topic_partition),
        )

    def configure(
        self,
        topic_partition: TopicPartition,
        config: LogConfig,
        min_insync_replicas: int,
        now_ms: int | None = None,
    ) -> None:
        """Apply new settings at once; a partition that isn't here is ignored.

        Retention that takes more away takes it now, not at its next turn.

        Args:
            topic_partition: which.
            config: the settings of its log.
            min_insync_replicas: how many must be in sync for acks=all.
            now_ms: in milliseconds since 1970; None: retention goes by size alone.

        Raises:
            ValueError: as for a new replica and a new log.
        """
        partition = self.partition(topic_partition)
        if partition is None:
            return
        is_advanced = partition.configure(config, min_insync_replicas)
        age_ms = None if _is_long(config.retention_ms) else now_ms
        if partition.log.apply_retention(age_ms) or is_advanced:
            self._complete_after_high_watermark(partition)

    def apply_retention(self, now_ms: int, with_long: bool = True) -> None:
        """Delete records that are more, or older, than their topics keep; begin segments by time.

        Args:
            now_ms: in milliseconds since 1970.
            with_long: whether also by times of a week and longer, as all are by default.
        """
        for partition in self.partitions():
            log = partition.log
            by_age = with_long or not _is_long(log.config.retention_ms)
            if log.apply_retention(now_ms if by_age else None):
                self._complete_after_high_watermark(partition)
            if with_long or not _is_long(log.config.segment_ms):
                log.roll_if_old(now_ms)

    def advance_start(self, topic_partition: TopicPartition, offset: int) -> None:
        """Delete records below ``offset`` for retention; followers do so with their next fetch.

        A partition that isn't here, or isn't led here, is no error, nor is an offset beyond the
        high watermark: nothing more is deleted than is committed.
        """
        partition = self.partition(topic_partition)
        if partition is not None and partition.advance_start(offset):
            self._complete_after_high_watermark(partition)

    def stop_replica(self, topic_partition: TopicPartition, delete: bool = False) -> None:
        """Stop a replica.

        Args:
            topic_partition: of the replica; an unknown one is ignored.
            delete: whether to delete the log; otherwise a later replica of the partition reuses it.
        """
        partition = self._partitions.pop(topic_partition, None)
        if partition is not None:
            partition.resign()
            self._stopped.add(topic_partition)
        if delete:
            self._logs.pop(topic_partition, None)
        if partition is not None:
            self._check_all_and_forget(topic_partition)

    def delete_topic(self, topic: str) -> None:
        """Drop all of a topic's replicas with their logs: its partitions are unknown from now."""
        here = [key for key in self._partitions if key.topic == topic]
        for topic_partition in here:
            self._partitions.pop(topic_partition).resign()
        self._logs = {key: log for key, log in self._logs.items() if key.topic != topic}
        self._stopped = {key for key in self._stopped if key.topic != topic}
        self._offline = {key for key in self._offline if key.topic != topic}
        for topic_partition in here:
            self._check_all_and_forget(topic_partition)

    def mark_offline(self, topic_partition: TopicPartition) -> None:
        """Take a replica offline after a disk failure: requests get KAFKA_STORAGE_ERROR."""
        partition = self._partitions.pop(topic_partition, None)
        self._logs.pop(topic_partition, None)
        self._stopped.discard(topic_partition)
        self._offline.add(topic_partition)
        if partition is not None:
            partition.resign()
            self._check_all_and_forget(topic_partition)

    def maybe_shrink_isr(self) -> None:
        """Remove lagging followers from the ISRs. Call it every half of ``max_lag_ms``."""
        now_ms = self.clock.now_ms()
        for partition in self.partitions():
            self._change_isr(partition, partition.propose_shrink(now_ms, self.max_lag_ms))

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
                self._check_all(topic_partition, partition)
            else:
                # A refused change holds the watermark back no more. Fetches are not checked: a
                # refused follower would ask again at once, and be refused again, for ever.
                self._complete_after_high_watermark(partition)

    def set_live_brokers(self, broker_ids: Collection[int] | None) -> None:
        """Set the brokers whose log start offsets count for low watermarks; None: all brokers."""
        self._live_brokers = None if broker_ids is None else frozenset(broker_ids)
        for partition in self.partitions():
            self.delete_records_purgatory.check_and_complete(partition.topic_partition)

    def logs(self) -> dict[TopicPartition, Log]:
        """Return all logs here, including unassigned ones of a former process."""
        return dict(self._logs)

    def detach_logs(self) -> dict[TopicPartition, Log]:
        """Return the logs and remove all replicas, as when a process ends and its disks remain.

        Delayed requests are not completed.
        """
        for partition in self._partitions.values():
            partition.resign()
        self._stopped.update(self._partitions)
        self._partitions.clear()
        logs, self._logs = self._logs, {}
        return logs

    # ---- the follower's side

    def follower_fetch(
        self, topic_partition: TopicPartition, max_bytes: int = 1024 * 1024
    ) -> PartitionFetch | None:
        """Return a follower's next fetch; None without a leader."""
        partition = self.partition(topic_partition)
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
        partition = self.partition(topic_partition)
        if partition is None or not partition.append_as_follower(fetch, response):
            return False
        if self.fetch_purgatory.watched > len(self._waiting_sessions):
            self._complete_after_append(partition)  # a consumer may read from this replica
        return True

    # ---- looking

    def partitions(self) -> list[Partition]:
        """Return all replicas here."""
        return list(self._partitions.values())

    def absence_error(self, topic_partition: TopicPartition) -> tuple[ErrorCode, str]:
        """Return the error, and the sentence, for a partition that isn't here."""
        if topic_partition in self._offline:
            return (
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{topic_partition} is offline on broker {self.broker_id}: its disk failed",
            )
        if topic_partition in self._stopped:
            return (
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self.broker_id} has no replica of {topic_partition} any more",
            )
        if self._is_on_other_broker(topic_partition):
            return (
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self.broker_id} has no replica of {topic_partition}",
            )
        return (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"broker {self.broker_id} doesn't know {topic_partition}",
        )

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
        partition = self.partition(topic_partition)
        if partition is None:
            raise KafkaError(*self.absence_error(topic_partition))
        return partition.offset_for_leader_epoch(leader_epoch, current_leader_epoch)

    # ---- completing delayed requests

    def _complete_after_append(self, partition: Partition) -> None:
        """Complete the fetches with enough bytes. O(completed + log n), or more at a new segment.

        A fetch of several partitions is checked at each append.
        """
        fetches, share_fetches = self.fetch_purgatory, self.share_fetch_purgatory
        pending = []
        if partition.leader_id == partition.broker_id:  # else no follower fetches it here
            for session in self._sessions.values():
                if session.notify_moved(partition):
                    pending.append(session)
        has_consumers = fetches.watched > len(self._waiting_sessions)
        if share_fetches is not None and share_fetches.watched:
            share_fetches.check_and_complete(partition.topic_partition)
        if has_consumers:
            fetches.check_and_complete(partition.topic_partition)
        for session in pending:
            fetches.check_and_complete(session)
        if not has_consumers:
            return
        positions = partition.drain_end_changes()
        if positions is None:
            for key in partition.end_keys:
                fetches.check_and_complete(key)
            return
        for key, position in zip(partition.end_keys, positions, strict=True):
            if position != UNCHANGED:
                fetches.advance(key, position)

    def _complete_after_high_watermark(self, partition: Partition) -> None:
        """Complete operations that waited for the high or low watermark. O(those + log n), except
        for a new segment, deletions, and fetches of several partitions."""
        produces = self.produce_purgatory
        if produces.watched and partition.is_leader:
            produces.advance(partition.topic_partition, partition.high_watermark)
        self._complete_after_append(partition)
        if self.delete_records_purgatory.watched:
            self.delete_records_purgatory.check_and_complete(partition.topic_partition)

    def _check_all(self, topic_partition: TopicPartition, partition: Partition | None) -> None:
        """Complete operations on a partition whose leader, epoch or ISR changed, or which is gone
        (None), if they can be. O(operations)."""
        fetches = self.fetch_purgatory
        self.produce_purgatory.check_and_complete(topic_partition)
        for session in tuple(self._sessions.values()):
            if session.notify_changed(topic_partition, partition):
                fetches.check_and_complete(session)
        fetches.check_and_complete(topic_partition)
        for key in end_keys(topic_partition):
            fetches.check_and_complete(key)
        self.delete_records_purgatory.check_and_complete(topic_partition)
        if self.share_fetch_purgatory is not None:
            self.share_fetch_purgatory.check_and_complete(topic_partition)

    def _check_all_and_forget(self, topic_partition: TopicPartition) -> None:
        """As `_check_all`, for a removed partition, whose thresholds are removed."""
        self._check_all(topic_partition, None)
        self._forget_thresholds(topic_partition)

    def _forget_thresholds(self, topic_partition: TopicPartition) -> None:
        """Forget how far the ends of a log were: they may be below that from now on."""
        self.produce_purgatory.forget(topic_partition)
        for key in end_keys(topic_partition):
            self.fetch_purgatory.forget(key)

    # ---- checking

    def _check(self) -> None:
        """Assert every invariant of the manager, its partitions and their logs. O(records)."""
        for topic_partition, partition in self._partitions.items():
            assert partition.topic_partition == topic_partition
            assert self._logs[topic_partition] is partition.log
            partition._check()
        assert not self._stopped & self._partitions.keys()
        assert not self._offline & self._partitions.keys()
        assert not self._offline & self._logs.keys()
        # Appends assume that each session's fetch waits.
        waiting = {
            session: session.operation
            for session in self._sessions.values()
            if session.operation is not None
        }
        assert not any(operation.is_completed for operation in waiting.values())
        assert waiting.keys() == self._waiting_sessions
        assert len(waiting) <= self.fetch_purgatory.watched
