"""The share partitions that a broker leads, and the requests of share groups' members.

Ground rules
------------
* One thread at a time calls it, and the timers of its purgatories are moved on that thread.
* A share partition is in memory from the first fetch of its group on, as long as this broker leads,
  and a connection is open that had a session of the group. Its coordinator keeps its state
  (`ShareStateStore`). As in Kafka, offsets altered meanwhile are found with the next write.
* A response with records acquires them in the same step: no other member can get them meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from uuid import UUID

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.log.leader_epoch_cache import UNKNOWN_OFFSET
from purgatory.kafka.replication.partition import Partition
from purgatory.kafka.replication.replica_manager import ReplicaManager
from purgatory.kafka.replication.requests import FetchParams, PartitionFetch
from purgatory.kafka.settings.group_settings import EARLIEST, GroupConfig, GroupSettings
from purgatory.kafka.share_groups.delayed_share_fetch import (
    BEYOND_LOG,
    NO_BYTES,
    DelayedShareFetch,
    RespondShareFetch,
    ShareFetchParams,
    ShareFetchResult,
)
from purgatory.kafka.share_groups.in_flight_records import InFlightRecords
from purgatory.kafka.share_groups.share_partition import (
    RespondStart,
    SharePartition,
    SharePurgatories,
    ShareStateStore,
)
from purgatory.kafka.share_groups.share_session import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    ShareSession,
    ShareSessionKey,
    ShareSessions,
)
from purgatory.kafka.share_groups.share_state import (
    Acknowledgement,
    AcknowledgeType,
    ShareKey,
    validate_ranges,
)
from purgatory.kafka.topic_partition import TopicPartition

_NO_RECORDS = ShareFetchResult()


class SharePartitionManager:
    """Serves the members of share groups at one broker, as Kafka's class of this name.

    Args:
        manager: the replicas.
        config: the limits of share groups.
        store: stores the state of share partitions.
        purgatories: hold delayed fetches and acquisition locks.
        settings_of: returns the settings of a group.
        name_of: returns the name of the topic that has an id, or None.
        offset_at: returns the first offset of a partition whose record is no older than so many
            milliseconds, -1 where all are older.
    """

    def __init__(
        self,
        manager: ReplicaManager,
        config: GroupConfig,
        store: ShareStateStore,
        purgatories: SharePurgatories,
        settings_of: Callable[[str], GroupSettings],
        name_of: Callable[[UUID], str | None],
        offset_at: Callable[[Partition, int], int],
    ) -> None:
        self.sessions = ShareSessions(config.share_max_sessions)
        self._manager = manager
        self._store = store
        self._purgatories = purgatories
        self._settings_of = settings_of
        self._name_of = name_of
        self._offset_at = offset_at
        self._share_partitions: dict[TopicPartition, dict[ShareKey, SharePartition]] = {}
        self._groups: dict[Hashable, set[str]] = {}
        """Of each connection the groups that had a session."""

    # Share partitions led by this broker.

    def update_role(self, topic_partition: TopicPartition, leader_epoch: int | None) -> None:
        """Lead a partition in this epoch, or cease to (None). O(its share partitions)."""
        for share_partition in list(self._share_partitions.get(topic_partition, {}).values()):
            if share_partition.leader_epoch != leader_epoch:
                self._remove(share_partition)

    def _remove(self, share_partition: SharePartition) -> None:
        share_partition.drop()
        partitions = self._share_partitions.get(share_partition.topic_partition, {})
        if partitions.get(share_partition.key) is share_partition:
            del partitions[share_partition.key]
            if not partitions:
                del self._share_partitions[share_partition.topic_partition]

    def _partition_of(self, key: ShareKey) -> Partition:
        """Return the partition of a share partition.

        Raises:
            KafkaError: this broker doesn't lead it.
        """
        name = self._name_of(key.topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic {key.topic_id}")
        topic_partition = TopicPartition(name, key.partition)
        partition = self._manager.partition(topic_partition)
        if partition is None:
            raise KafkaError(*self._manager.absence_error(topic_partition))
        if not partition.is_leader:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic_partition} is not led by this broker"
            )
        return partition

    def _find(self, key: ShareKey) -> tuple[Partition, SharePartition]:
        """Return a share partition; begin to load it if needed.

        Raises:
            KafkaError: this broker doesn't lead its partition.
        """
        partition = self._partition_of(key)
        topic_partition = partition.topic_partition
        share_partition = self._share_partitions.get(topic_partition, {}).get(key)
        if share_partition is not None and share_partition.leader_epoch == partition.leader_epoch:
            if share_partition.failure is not None:
                raise KafkaError(share_partition.failure, f"the group has no state of {key}")
            return partition, share_partition
        if share_partition is not None:
            self._remove(share_partition)
        share_partition = SharePartition(
            key,
            topic_partition,
            partition.leader_epoch,
            lambda: self._settings_of(key.group_id),
            self._store,
            self._purgatories,
            lambda respond: self._respond_start(key.group_id, partition, respond),
            self._remove,
            self._forget_unless_used,
        )
        self._share_partitions.setdefault(topic_partition, {})[key] = share_partition
        share_partition.load()
        return partition, share_partition

    def _respond_start(self, group_id: str, partition: Partition, respond: RespondStart) -> None:
        settings = self._settings_of(group_id)
        start = settings.share_start
        if isinstance(start, int):
            offset = self._offset_at(partition, start)
        else:
            offset = partition.log_start_offset if start == EARLIEST else UNKNOWN_OFFSET
        if offset == UNKNOWN_OFFSET:
            offset = partition.visible_end(settings.share_isolation)
        respond(ErrorCode.NONE, offset)

    # Sessions.

    def session(
        self,
        owner: ShareSessionKey,
        epoch: int,
        connection: Hashable,
        added: Iterable[ShareKey] = (),
        forgotten: Iterable[ShareKey] = (),
    ) -> ShareSession:
        """Return the session of a fetch, or of an acknowledgement.

        Args:
            epoch: that of the request.
            connection: that of the request: the session ends with it.
            added, forgotten: changes of the session's share partitions.

        Raises:
            KafkaError: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH or
                SHARE_SESSION_LIMIT_REACHED.
        """
        if epoch == FIRST_EPOCH:
            self.sessions.end(owner)
            session = self.sessions.begin(owner, connection)
            self._groups.setdefault(connection, set()).add(owner.group_id)
        else:
            session = self.sessions.continue_session(owner, epoch)
        if epoch != FINAL_EPOCH:
            session.connection = connection
            session.update(added, forgotten)
        return session

    def end_session(self, owner: ShareSessionKey) -> None:
        """End a member's session, and release its records of the session's partitions. They count
        as delivered: the member may have seen them."""
        session = self.sessions.end(owner)
        if session is None:
            return
        for share_partition in self._share_partitions_of(owner.group_id):
            if share_partition.key in session.partitions:
                share_partition.release(owner.member_id)

    def _forget_unless_used(self, share_partition: SharePartition) -> None:
        group_id = share_partition.key.group_id
        is_open = any(group_id in groups for groups in self._groups.values())
        if not is_open and not self.sessions.group_sessions(group_id):
            self._remove(share_partition)

    def connection_closed(self, connection: Hashable) -> None:
        """End the sessions of a closed connection. O(sessions)."""
        for session in self.sessions.connection_sessions(connection):
            self.end_session(session.owner)
        for group_id in self._groups.pop(connection, ()):
            for share_partition in self._share_partitions_of(group_id):
                if share_partition.is_idle:
                    self._forget_unless_used(share_partition)

    def _share_partitions_of(self, group_id: str) -> list[SharePartition]:
        return [
            share_partition
            for partitions in self._share_partitions.values()
            for key, share_partition in partitions.items()
            if key[0] == group_id
        ]

    # Fetching.

    def fetch(
        self,
        session: ShareSession,
        keys: Sequence[ShareKey],
        params: ShareFetchParams,
        respond: RespondShareFetch,
    ) -> None:
        """Acquire records, waiting until there are any; none once the session has ended.

        Args:
            session: the member's.
            keys: share partitions, in the order in which they share the limits.
            params: the request's limits.
            respond: takes the results of those with records or errors.

        Raises:
            PurgatoryClosedError: the fetch would have to wait, and the purgatory was closed.
        """
        places = {
            key: TopicPartition(self._name_of(key.topic_id) or str(key.topic_id), key.partition)
            for key in keys
        }
        for key, place in places.items():
            self._remove_if_failed(place, key)  # it is read again
        operation = DelayedShareFetch(session, params, places, self, respond)
        if not keys or params.max_records <= 0 or params.max_bytes <= 0:
            respond({})
        elif params.max_wait_ms <= 0:
            operation.force_complete()
        else:
            watched = (*dict.fromkeys(places.values()), *keys)
            self._purgatories.fetches.try_complete_else_watch(operation, watched)

    def _remove_if_failed(self, topic_partition: TopicPartition, key: ShareKey) -> None:
        failed = self._share_partitions.get(topic_partition, {}).get(key)
        if failed is not None and failed.failure is not None:
            self._remove(failed)

    def available_bytes(self, key: ShareKey) -> int | None:
        """Return how many bytes may be acquired now. O(runs).

        NO_BYTES if there is an error; BEYOND_LOG; None: its state is being read, or it has as many
        records in flight as it may.
        """
        try:
            partition, share_partition = self._find(key)
        except KafkaError:
            return NO_BYTES
        if share_partition.in_flight is None:
            return None
        offset = self._next_offset(partition, share_partition.in_flight)
        if offset is None:
            return None
        if offset > partition.log.end_offset:
            return BEYOND_LOG
        isolation = self._settings_of(key.group_id).share_isolation
        end_offset = partition.visible_end(isolation)
        if offset >= end_offset:
            return 0
        log = partition.log
        begin_offset = min(log.skip_placeholders(offset), end_offset)
        return log.position_of(end_offset) - log.position_of(begin_offset)

    def _next_offset(self, partition: Partition, in_flight: InFlightRecords) -> int | None:
        in_flight.raise_start(partition.log_start_offset)
        return in_flight.next_offset()

    def acquire(
        self, session: ShareSession, key: ShareKey, params: ShareFetchParams
    ) -> ShareFetchResult:
        """Acquire available records of a share partition, within the limits."""
        if not session.is_open:
            return _NO_RECORDS
        try:
            partition, share_partition = self._find(key)
        except KafkaError as error:
            return ShareFetchResult(error.code, error.message)
        in_flight = share_partition.in_flight
        settings = self._settings_of(key.group_id)
        if in_flight is not None:
            in_flight.max_deliveries = settings.share_max_deliveries
            in_flight.max_records = settings.share_max_records
        offset = None if in_flight is None else self._next_offset(partition, in_flight)
        if in_flight is None or offset is None:
            return _NO_RECORDS
        fetch_params = FetchParams(max_bytes=params.max_bytes, isolation=settings.share_isolation)
        fetches = {partition.topic_partition: PartitionFetch(offset, params.max_bytes)}
        read = self._manager.read(fetch_params, fetches)[partition.topic_partition]
        if read.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return _NO_RECORDS  # beyond the log's end, or its records are not committed yet
        if read.error is not ErrorCode.NONE:
            return ShareFetchResult(read.error, read.message)
        visible = [batch for batch in read.visible_batches() if batch.record_count]
        visible_offsets = {batch.base_offset for batch in visible}
        for batch in read.batches:
            if batch.base_offset > offset:  # compaction removed the records between
                in_flight.archive(offset, batch.base_offset - 1)
            if batch.base_offset not in visible_offsets:
                in_flight.archive(batch.base_offset, batch.last_offset)
            offset = batch.next_offset
        acquired = share_partition.acquire(
            session.owner.member_id,
            settings.milliseconds("share.record.lock.duration.ms"),
            [(batch.base_offset, batch.last_offset) for batch in visible],
            params.max_records,
            params.exactly,
            params.batch_size,
        )
        if not acquired:
            share_partition.save_start()
            return _NO_RECORDS
        first, last = acquired[0].first, acquired[-1].last
        sent = tuple(
            batch for batch in visible if batch.base_offset <= last and batch.last_offset >= first
        )
        return ShareFetchResult(batches=sent, acquired=tuple(acquired))

    # Acknowledging.

    def acknowledge(
        self,
        owner: ShareSessionKey,
        acknowledgements: Mapping[ShareKey, Sequence[Acknowledgement]],
        respond: Callable[[Mapping[ShareKey, tuple[ErrorCode, str | None]]], object],
    ) -> None:
        """Apply acknowledgements of a member.

        Args:
            acknowledgements: by share partition; those of each apply all or none.
            respond: takes a code and message for each, once all are persisted, or can't be.
        """
        codes: dict[ShareKey, tuple[ErrorCode, str | None]] = {}

        def respond_partition(key: ShareKey, code: ErrorCode, message: str | None = None) -> None:
            codes[key] = code, message
            if len(codes) == len(acknowledgements):
                respond(codes)

        if not acknowledgements:
            respond(codes)
        for key, partition_acknowledgements in acknowledgements.items():
            try:
                self._acknowledge_one(owner, key, partition_acknowledgements, respond_partition)
            except KafkaError as error:
                respond_partition(key, error.code, error.message)

    def _acknowledge_one(
        self,
        owner: ShareSessionKey,
        key: ShareKey,
        acknowledgements: Sequence[Acknowledgement],
        respond_partition: Callable[[ShareKey, ErrorCode, str | None], object],
    ) -> None:
        validate_ranges(acknowledgements)
        partition = self._partition_of(key)
        self._remove_if_failed(partition.topic_partition, key)
        share_partition = self._share_partitions.get(partition.topic_partition, {}).get(key)
        if share_partition is None or share_partition.leader_epoch != partition.leader_epoch:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no member of the group has fetched {key}"
            )
        settings = self._settings_of(key.group_id)
        if not settings.share_renews and any(
            AcknowledgeType.RENEW in acknowledgement.types for acknowledgement in acknowledgements
        ):
            error = "members of the group may not renew: share.renew.acknowledge.enable is false"
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, error)
        lock_ms = settings.milliseconds("share.record.lock.duration.ms")

        def respond_stored(code: ErrorCode) -> None:
            error = None if code is ErrorCode.NONE else f"the state of {key} was not stored"
            respond_partition(key, code, error)

        share_partition.acknowledge(owner.member_id, acknowledgements, lock_ms, respond_stored)
