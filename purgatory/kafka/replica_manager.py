"""The replicas of one broker, the requests on them, and what completes those that wait.

A request is answered through its ``respond``, from inside the call or later, exactly once. What
waits is kept in three purgatories, watched on its partitions. What happens here completes it:

    records appended                         checks Fetch
    high or low watermark moved              checks Produce, Fetch and DeleteRecords
    leader changed, replica stopped,
    topic deleted, ISR changed               checks all three, too
    another broker died or lives             checks DeleteRecords

The manager has no thread, timer or clock of its own: time comes from the ``clock`` passed in,
timeouts from the timers of the purgatories.

Ground rules
------------
* ``_lock`` guards which partitions are here. It is taken before a partition's lock, never after,
  and not at all to look one up: a dict's ``get`` is atomic.
* The purgatories' checks, ``respond`` and ``on_isr_change`` run without any of these locks held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.kafka.delayed_delete_records import (
    DelayedDeleteRecords,
    DeleteRecordsStatus,
    RespondDeleteRecords,
)
from purgatory.kafka.delayed_fetch import DelayedFetch, FetchPlace, RespondFetch
from purgatory.kafka.delayed_produce import DelayedProduce, ProduceStatus, RespondProduce
from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.in_sync_replicas import IsrChange
from purgatory.kafka.log import Log, LogConfig
from purgatory.kafka.partition import Partition
from purgatory.kafka.record_batch import RecordBatch
from purgatory.kafka.requests import (
    UNKNOWN_OFFSET,
    AppendOrigin,
    EpochEndOffset,
    FetchIsolation,
    FetchParams,
    PartitionFetch,
    PartitionFetchResponse,
    PartitionProduceResponse,
)
from purgatory.kafka.topic_partition import TopicPartition
from timer import Clock

OnIsrChange = Callable[[TopicPartition, int, tuple[int, ...]], bool | None]

_NONE = ErrorCode.NONE
_ACKS_ALL = -1
_ACKS = (_ACKS_ALL, 0, 1)


class ReplicaManager:
    """What a broker does with its replicas.

    Args:
        broker_id: this broker.
        clock: tells when followers fetched and when they lag.
        produce_purgatory, fetch_purgatory, delete_records_purgatory: where requests wait.
        min_insync_replicas: how many must be in sync for acks=all.
        max_lag_ms: who didn't catch up for this long leaves the ISR (``maybe_shrink_isr``).
        log_config: the settings of new logs.
        logs: what a former process of this broker left on its disks (``take_logs``).
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
        min_insync_replicas: int = 1,
        max_lag_ms: int = 30_000,
        log_config: LogConfig | None = None,
        logs: Mapping[TopicPartition, Log] | None = None,
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
        self.live_brokers: frozenset[int] | None = None
        self._log_config = log_config
        self._on_isr_change = on_isr_change
        self._lock = threading.Lock()
        self._partitions: dict[TopicPartition, Partition] = {}
        self._logs: dict[TopicPartition, Log] = dict(logs or {})
        # Partitions that were here: stopped, or on a disk that failed.
        self._stopped: set[TopicPartition] = set(self._logs)
        self._offline: set[TopicPartition] = set()

    # ---- requests

    def append_records(
        self,
        timeout_ms: int,
        required_acks: int,
        entries: Mapping[TopicPartition, RecordBatch | Sequence[RecordBatch]],
        respond: RespondProduce,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> None:
        """Append records, and answer once they are as safe as ``required_acks`` asks.

        Args:
            timeout_ms: the longest wait for replication, in milliseconds.
            required_acks: 0 or 1: answer after the leader's append (the answer to a 0 isn't meant
                to be sent); -1: when all in-sync replicas have the records.
            entries: what to append, each partition's batches all or none.
            respond: takes the answer of each partition.
            origin: who appends.

        Raises:
            PurgatoryClosedError: it would have to wait, but the purgatory was closed. ``respond``
                is not called then.
        """
        if required_acks not in _ACKS:
            respond(_refused(entries, required_acks))
            return
        statuses = []
        waiting = []
        for topic_partition, entry in entries.items():
            status = self._append(topic_partition, entry, required_acks, origin)
            statuses.append(status)
            appended = status.appended
            if appended is None:
                continue
            if required_acks == _ACKS_ALL:
                status.begin_to_wait()
                waiting.append(topic_partition)
            if appended.moved:
                self._check_all(topic_partition)
            elif not appended.duplicate:
                self.fetch_purgatory.check_and_complete(topic_partition)
        if waiting:
            self.produce_purgatory.try_complete_else_watch(
                DelayedProduce(timeout_ms, self, statuses, respond), waiting
            )
        else:
            respond({status.topic_partition: status.response() for status in statuses})

    def _append(
        self,
        topic_partition: TopicPartition,
        entry: RecordBatch | Sequence[RecordBatch],
        required_acks: int,
        origin: AppendOrigin,
    ) -> ProduceStatus:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            error, message = self.why_absent(topic_partition)
            return ProduceStatus(topic_partition, error=error, message=message)
        batches = (entry,) if isinstance(entry, RecordBatch) else entry
        try:
            appended = partition.append_as_leader(batches, required_acks, origin)
        except KafkaError as failure:
            return ProduceStatus(topic_partition, error=failure.code, message=failure.message)
        return ProduceStatus(topic_partition, partition, appended)

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
                when ``max_bytes`` doesn't do for all. Don't change it until the answer.
            respond: takes the answer of each partition.

        Raises:
            PurgatoryClosedError: it would have to wait, but the purgatory was closed. ``respond``
                is not called then.
        """
        if params.replica_id >= 0:
            answers, size_bytes, at_once = self._read_for_follower(params, fetches)
        else:
            answers, size_bytes, at_once = self._read(params, fetches)
        if at_once or size_bytes >= params.min_bytes or params.max_wait_ms <= 0 or not fetches:
            respond(answers)
            return
        places = self._places(fetches)
        if places is None:
            # A replica went while this request was read: another thread's doing.
            respond(self.read(params, fetches))
            return
        self.fetch_purgatory.try_complete_else_watch(
            DelayedFetch(params, _isolation(params), self, fetches, places, respond), fetches
        )

    def read(
        self, params: FetchParams, fetches: Mapping[TopicPartition, PartitionFetch]
    ) -> dict[TopicPartition, PartitionFetchResponse]:
        """Read what is there now, without noting how far a follower is. Never waits."""
        return self._read(params, fetches)[0]

    def _read(
        self, params: FetchParams, fetches: Mapping[TopicPartition, PartitionFetch]
    ) -> tuple[dict[TopicPartition, PartitionFetchResponse], int, bool]:
        isolation = _isolation(params)
        answers = {}
        size_bytes = 0
        at_once = False
        for topic_partition, fetch in fetches.items():
            partition = self._partitions.get(topic_partition)
            if partition is None:
                answer = self._absent_response(topic_partition)
            else:
                # At least one batch per request, however large: else its reader would be stuck.
                answer = partition.fetch(
                    fetch, isolation, params.max_bytes - size_bytes, size_bytes == 0
                )
            answers[topic_partition] = answer
            size_bytes += answer.size_bytes
            if answer.error is not _NONE or answer.diverging_epoch is not None:
                at_once = True
        return answers, size_bytes, at_once

    def _read_for_follower(
        self, params: FetchParams, fetches: Mapping[TopicPartition, PartitionFetch]
    ) -> tuple[dict[TopicPartition, PartitionFetchResponse], int, bool]:
        """Read as ``_read`` does, and do what follows from how far the follower is."""
        replica_id, max_bytes = params.replica_id, params.max_bytes
        now_ms = self.clock.now_ms()
        answers = {}
        size_bytes = 0
        at_once = False
        to_check = []
        joining = []
        for topic_partition, fetch in fetches.items():
            partition = self._partitions.get(topic_partition)
            if partition is None:
                answer = self._absent_response(topic_partition)
            else:
                answer, moved, may_join = partition.fetch_as_follower(
                    fetch, replica_id, max_bytes - size_bytes, size_bytes == 0, now_ms
                )
                if moved:
                    to_check.append(topic_partition)
                if may_join:
                    joining.append(partition)
            answers[topic_partition] = answer
            size_bytes += answer.size_bytes
            if answer.error is not _NONE or answer.diverging_epoch is not None:
                at_once = True
        for topic_partition in to_check:
            self._check_all(topic_partition)
        for partition in joining:
            self._change_isr(partition, partition.propose_expansion(replica_id))
        return answers, size_bytes, at_once

    def _places(self, fetches: Mapping[TopicPartition, PartitionFetch]) -> list[FetchPlace] | None:
        places = []
        for topic_partition, fetch in fetches.items():
            partition = self._partitions.get(topic_partition)
            if partition is None:
                return None
            segment_base, position = partition.fetch_place(fetch.fetch_offset)
            places.append((topic_partition, fetch, segment_base, position))
        return places

    def delete_records(
        self,
        timeout_ms: int,
        offsets: Mapping[TopicPartition, int],
        respond: RespondDeleteRecords,
    ) -> None:
        """Delete the records below the offsets, and answer once every live replica did.

        Args:
            timeout_ms: the longest wait for the followers, in milliseconds.
            offsets: the first offset to keep; -1 stands for the high watermark.
            respond: takes the answer of each partition.

        Raises:
            PurgatoryClosedError: it would have to wait, but the purgatory was closed. ``respond``
                is not called then.
        """
        statuses = [
            self._delete_records(topic_partition, offset)
            for topic_partition, offset in offsets.items()
        ]
        waiting = []
        for status in statuses:
            if status.error is _NONE:
                # The leader's own start may have been the least one.
                self.delete_records_purgatory.check_and_complete(status.topic_partition)
                if status.low_watermark < status.required_offset:
                    status.begin_to_wait()
                    waiting.append(status.topic_partition)
        if waiting:
            self.delete_records_purgatory.try_complete_else_watch(
                DelayedDeleteRecords(timeout_ms, self, statuses, respond), waiting
            )
        else:
            respond({status.topic_partition: status.response() for status in statuses})

    def _delete_records(self, topic_partition: TopicPartition, offset: int) -> DeleteRecordsStatus:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            error, message = self.why_absent(topic_partition)
            return DeleteRecordsStatus(topic_partition, offset, UNKNOWN_OFFSET, error, message)
        try:
            required_offset = partition.delete_records(offset)
        except KafkaError as failure:
            return DeleteRecordsStatus(
                topic_partition, offset, UNKNOWN_OFFSET, failure.code, failure.message
            )
        low_watermark = partition.low_watermark_if_leader(self.live_brokers)
        if low_watermark is None:
            low_watermark = UNKNOWN_OFFSET  # the wait finds out that another leads now
        return DeleteRecordsStatus(topic_partition, required_offset, low_watermark)

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
            leader_epoch: given by the controller, higher at each change.
            isr: who is in sync, this broker among them.
            replicas: who is assigned, in order.

        Returns:
            False, and nothing changed, when the epoch is an old one or the disk failed.

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
        """Follow another broker, with a new replica if there is none here.

        Args:
            topic_partition: which.
            leader_id: whom to follow; -1: nobody leads now.
            leader_epoch: given by the controller, higher at each change.
            replicas: who is assigned, in order; empty: as before.

        Returns:
            False, and nothing changed, when the epoch is an old one or the disk failed.

        Raises:
            ValueError: told to follow itself.
        """
        return self._change_role(
            topic_partition,
            lambda partition: partition.make_follower(leader_id, leader_epoch, replicas),
        )

    def _change_role(
        self, topic_partition: TopicPartition, change: Callable[[Partition], bool]
    ) -> bool:
        with self._lock:
            if topic_partition in self._offline:
                return False
            partition = self._partitions.get(topic_partition)
            if partition is None:
                partition = self._new_partition(topic_partition)
            changed = change(partition)
            if changed:
                self._partitions[topic_partition] = partition
                self._logs[topic_partition] = partition.log
                self._stopped.discard(topic_partition)
        if changed:
            self._check_all(topic_partition)
        return changed

    def _new_partition(self, topic_partition: TopicPartition) -> Partition:
        log = self._logs.get(topic_partition)
        return Partition(
            topic_partition,
            self.broker_id,
            Log(self._log_config) if log is None else log,
            self.min_insync_replicas,
        )

    def stop_replica(self, topic_partition: TopicPartition, delete: bool = False) -> None:
        """Neither lead nor follow a partition any more.

        Args:
            topic_partition: which; one that isn't here is no error.
            delete: drop the log, too; else it is found again when the replica comes back.
        """
        with self._lock:
            partition = self._partitions.pop(topic_partition, None)
            if partition is not None:
                partition.resign()
                self._stopped.add(topic_partition)
            if delete:
                self._logs.pop(topic_partition, None)
        if partition is not None:
            self._check_all(topic_partition)

    def delete_topic(self, topic: str) -> None:
        """Drop all of a topic's replicas with their logs: its partitions are unknown from now."""
        with self._lock:
            here = [key for key in self._partitions if key.topic == topic]
            for topic_partition in here:
                self._partitions.pop(topic_partition).resign()
            for held in (self._logs, self._stopped, self._offline):
                for topic_partition in [key for key in held if key.topic == topic]:
                    _remove(held, topic_partition)
        for topic_partition in here:
            self._check_all(topic_partition)

    def mark_offline(self, topic_partition: TopicPartition) -> None:
        """Give up a replica whose disk failed: every request on it gets KAFKA_STORAGE_ERROR."""
        with self._lock:
            partition = self._partitions.pop(topic_partition, None)
            self._logs.pop(topic_partition, None)
            self._stopped.discard(topic_partition)
            self._offline.add(topic_partition)
            if partition is not None:
                partition.resign()
        if partition is not None:
            self._check_all(topic_partition)

    def maybe_shrink_isr(self, now_ms: int | None = None) -> None:
        """Drop from the ISRs who lags for too long. Call it every half of ``max_lag_ms``.

        Args:
            now_ms: the time; by default the clock's.
        """
        if now_ms is None:
            now_ms = self.clock.now_ms()
        for partition in self.partitions():
            self._change_isr(partition, partition.propose_shrink(now_ms, self.max_lag_ms))

    def _change_isr(self, partition: Partition, change: IsrChange | None) -> None:
        if change is None:
            return
        topic_partition = partition.topic_partition
        accepted = False
        try:
            ask = self._on_isr_change
            accepted = ask is None or (
                ask(topic_partition, change.leader_epoch, change.isr) is not False
            )
        finally:
            partition.settle_isr_change(change, accepted)
            self._check_all(topic_partition)

    def set_live_brokers(self, broker_ids: Collection[int] | None) -> None:
        """Tell whose log start offsets count for low watermarks; None, as at first: everybody's."""
        self.live_brokers = None if broker_ids is None else frozenset(broker_ids)
        for partition in self.partitions():
            self.delete_records_purgatory.check_and_complete(partition.topic_partition)

    def take_logs(self) -> dict[TopicPartition, Log]:
        """Give away the logs, as a process that ends leaves them on its disks.

        Nothing that waits is completed: the process is gone. The manager hosts nothing after it.
        """
        with self._lock:
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
        """Return what to ask the leader for next; None where no leader is followed."""
        partition = self._partitions.get(topic_partition)
        return None if partition is None else partition.next_fetch(max_bytes)

    def append_as_follower(
        self,
        topic_partition: TopicPartition,
        fetch: PartitionFetch,
        response: PartitionFetchResponse,
    ) -> bool:
        """Take the leader's answer to ``fetch``: append, move the high watermark, or truncate.

        Returns:
            False, and nothing changed, when the answer is an error to try again after, or stale:
            this replica's epoch or log end is no longer what ``fetch`` said.

        Raises:
            KafkaError: INVALID_RECORD, when the batches don't follow one another.
        """
        partition = self._partitions.get(topic_partition)
        return partition is not None and partition.append_as_follower(fetch, response)

    # ---- looking

    def partition(self, topic_partition: TopicPartition) -> Partition | None:
        """Return the replica here, or None. O(1)."""
        return self._partitions.get(topic_partition)

    def partitions(self) -> list[Partition]:
        """Return all replicas here."""
        return list(self._partitions.values())

    def why_absent(self, topic_partition: TopicPartition) -> tuple[ErrorCode, str]:
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
        partition = self._partitions.get(topic_partition)
        if partition is None:
            raise KafkaError(*self.why_absent(topic_partition))
        return partition.offset_for_leader_epoch(leader_epoch, current_leader_epoch)

    def _absent_response(self, topic_partition: TopicPartition) -> PartitionFetchResponse:
        error, message = self.why_absent(topic_partition)
        return PartitionFetchResponse(error, message=message)

    def _check_all(self, topic_partition: TopicPartition) -> None:
        self.produce_purgatory.check_and_complete(topic_partition)
        self.fetch_purgatory.check_and_complete(topic_partition)
        self.delete_records_purgatory.check_and_complete(topic_partition)

    def _check(self) -> None:
        """Assert every invariant of the manager, its partitions and their logs. O(records)."""
        with self._lock:
            for topic_partition, partition in self._partitions.items():
                assert partition.topic_partition == topic_partition
                assert self._logs[topic_partition] is partition.log
            assert not self._stopped & self._partitions.keys()
            assert not self._offline & self._partitions.keys()
            assert not self._offline & self._logs.keys()
            for partition in self._partitions.values():
                partition._check()


def _isolation(params: FetchParams) -> FetchIsolation:
    return FetchIsolation.LOG_END if params.replica_id >= 0 else params.isolation


def _refused(
    entries: Mapping[TopicPartition, object], required_acks: int
) -> dict[TopicPartition, PartitionProduceResponse]:
    response = PartitionProduceResponse(
        ErrorCode.INVALID_REQUIRED_ACKS,
        message=f"required acks {required_acks!r}: 0, 1 or -1 (all) can be asked for",
    )
    return dict.fromkeys(entries, response)


def _remove(
    held: dict[TopicPartition, Log] | set[TopicPartition], topic_partition: TopicPartition
) -> None:
    if isinstance(held, set):
        held.discard(topic_partition)
    else:
        held.pop(topic_partition, None)
