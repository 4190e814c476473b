"""The services of one broker's process, which the APIs call: replica manager, coordinators,
purgatories.

    APIs ── BrokerServices ── ReplicaManager, GroupManager, TransactionCoordinator, ...

`Broker` adds the connections of clients, and what the controller calls. A new process has new
services: of the former one only the logs remain.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import math
import random
import sys
import uuid
from collections.abc import Awaitable, Callable
from functools import partial

from purgatory.cluster.coordinator_records import (
    OffsetsRecords,
    ShareStateRecords,
    TransactionsRecords,
)
from purgatory.cluster.inter_broker import (
    InterBrokerClient,
    InterBrokerMarkerChannel,
    SharePersister,
)
from purgatory.cluster.listeners import Endpoint, Listener, Listening
from purgatory.cluster.log_manager import BrokerLogs
from purgatory.cluster.metadata import AuthorizedTopics, ClusterMetadata
from purgatory.cluster.protocol.connection import Connection, Response
from purgatory.cluster.protocol.wire import Request
from purgatory.cluster.records import earliest_offset_since
from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka import (
    ErrorCode,
    GroupManager,
    Partition,
    ReplicaManager,
    TopicPartition,
    TransactionCoordinator,
)
from purgatory.kafka.client_quotas import QuotaMeter
from purgatory.kafka.delayed_admin import LeaderElections, TopicChanges
from purgatory.kafka.replication.fetch_session import FetchSessions
from purgatory.kafka.security.authorizer import Authorizer
from purgatory.kafka.settings.topic_settings import effective_value
from purgatory.kafka.share_groups.share_coordinator import ShareCoordinator
from purgatory.kafka.share_groups.share_partition import SharePurgatories
from purgatory.kafka.share_groups.share_partition_manager import SharePartitionManager
from purgatory.kafka.share_groups.share_state import UNKNOWN_START_OFFSET, ShareKey
from purgatory.kafka.topic_partition import TopicIdPartition, short_id
from timer import SystemClock
from timer.machine_time import time

Handler = Callable[["BrokerServices", Request, Connection], Response | Awaitable[Response]]
"""Handles a request to a broker from a connection; the result may be awaitable."""


class BrokerServices:
    """The services of a broker that the APIs call.

    Args:
        cluster: the state that all brokers share.
        broker_id: the broker's id.
    """

    def __init__(self, cluster: ClusterMetadata, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.alive = False
        self.listening = Listening(
            broker_id,
            {
                listener.name: cluster.config.endpoint(listener, broker_id)
                for listener in cluster.config.all_listeners
            },
        )
        self.logs = BrokerLogs(cluster, broker_id, self.setting)
        self.purgatories: list[AsyncPurgatory] = []
        self.manager: ReplicaManager
        self.fetch_sessions: FetchSessions
        self.groups: GroupManager
        self.elections: LeaderElections
        self.topic_changes: TopicChanges
        self.authorizer: Authorizer
        self.alter_acls_purgatory: DelayedOperationPurgatory
        self.transactions: TransactionCoordinator
        self.share_coordinator: ShareCoordinator
        self.share_states: SharePersister
        self.shares: SharePartitionManager
        self.peer_calls: InterBrokerClient
        self.quota_meter: QuotaMeter
        self.topic_errors: dict[str, tuple[str, int]]
        """Why internal topics of streams groups could not be created, and until when they are not
        tried again (ms of the manager's clock)."""

    def endpoint(self, listener: Listener) -> Endpoint:
        """Return the broker's address for clients of a listener."""
        bound = self.listening.endpoint(listener)
        return bound._replace(host=self.cluster.config.told_host(listener))

    @property
    def host(self) -> str:
        """The host of its first listener."""
        return self.endpoint(self.cluster.config.all_listeners[0]).host

    @property
    def port(self) -> int:
        """The port of its first listener."""
        return self.endpoint(self.cluster.config.all_listeners[0]).port

    def _start_services(self) -> None:
        """Build the services of a new process, over the logs that its disks hold."""
        config, trace = self.cluster.config, self.cluster.trace
        broker_id = self.broker_id
        self.purgatories = []
        self.fetch_sessions = FetchSessions(lambda: random.randint(1, 2**31 - 1))
        self.quota_meter = QuotaMeter(self.cluster.controller.client_quotas)
        self.topic_errors = {}
        self.logs.configure()
        self.manager = ReplicaManager(
            broker_id,
            clock=SystemClock(),
            produce_purgatory=self._purgatory("Produce"),
            fetch_purgatory=self._purgatory("Fetch"),
            delete_records_purgatory=self._purgatory("DeleteRecords"),
            share_fetch_purgatory=(share_fetches := self._purgatory("ShareFetch")),
            min_insync_replicas=config.min_insync_replicas,
            max_lag_ms=config.replica_max_lag_ms,
            new_log=self.logs.new_log,
            min_insync_of=self._min_insync_of,
            is_on_other_broker=self._is_known,
            logs=self.logs.offline_logs,
            on_isr_change=self.cluster.controller.change_isr,
        )
        self.elections = LeaderElections(
            self._purgatory("ElectLeader"), self.cluster.controller, self.knows_leader
        )
        self.topic_changes = TopicChanges(self._purgatory("Topic"))
        self.groups = GroupManager(
            self.manager,
            config.groups,
            OffsetsRecords(),
            new_purgatory=self._purgatory,
            new_member_id=lambda begin: f"{begin}-{uuid.uuid4()}",
            now_ms=self.now_ms,
            offsets_partitions=self.cluster.offsets_partitions,
            is_known=self._is_known,
            known_topics=AuthorizedTopics(self.cluster.controller, lambda: self.authorizer),
            on_ended=None if trace is None else trace.transactions.on_offset_ended,
            settings_of=self.cluster.group_settings,
            new_consumer_id=lambda: short_id(uuid.uuid4()),
            initialize_share=self._initialize_share,
        )
        self.peer_calls = InterBrokerClient(self, self.cluster)
        self._start_shares(SharePurgatories(share_fetches, self._purgatory("AcquisitionLock")))
        self.transactions = TransactionCoordinator(
            self.manager,
            config.transactions,
            TransactionsRecords(),
            InterBrokerMarkerChannel(self.peer_calls, self.cluster),
            new_purgatory=self._purgatory,
            new_producer_id=self.cluster.new_producer_id,
            now_ms=self.now_ms,
            state_partitions=self.cluster.transactions_partitions,
            on_record=None if trace is None else trace.transactions.on_record,
        )
        self.authorizer = self.cluster.security.new_authorizer()
        self.alter_acls_purgatory = self._purgatory("AlterAcls")

    def _start_shares(self, waits: SharePurgatories) -> None:
        self.share_coordinator = ShareCoordinator(
            self.manager, ShareStateRecords(), self.cluster.share_state_partitions
        )
        self.share_states = SharePersister(self.peer_calls, self.cluster, self.share_coordinator)
        self.shares = SharePartitionManager(
            self.manager,
            self.cluster.config.groups,
            self.share_states,
            waits,
            self.cluster.group_settings,
            self._topic_name,
            self._offset_at,
        )

    def _initialize_share(
        self,
        group_id: str,
        partition: TopicIdPartition,
        epoch: int,
        respond: Callable[[ErrorCode], object],
    ) -> None:
        key = ShareKey(group_id, partition.topic_id, partition.partition)
        self.share_states.initialize(key, epoch, UNKNOWN_START_OFFSET, respond)

    def _topic_name(self, topic_id: uuid.UUID) -> str | None:
        topic = self.cluster.topic_of(topic_id)
        return None if topic is None else topic.name

    def _offset_at(self, partition: Partition, age_ms: int) -> int:
        return earliest_offset_since(partition, self.now_ms() - age_ms)

    def now_ms(self) -> int:
        """Return the broker's wall-clock time, in milliseconds since 1970."""
        fault, now_ms = self.cluster.fault, time.time_ns() // 1_000_000
        return now_ms + fault.clock_jump_ms(self.broker_id) if fault.active else now_ms

    def record_quota(
        self, connection: Connection, request: Request, key: str, amount: float
    ) -> int:
        """Count what a client has used; return its throttle time, in milliseconds.

        Its further requests wait for as long.
        """
        now_ms = int(self.manager.clock.now_ms())
        client_id = request.client_id or ""
        throttle_ms = self.quota_meter.record(connection.principal, client_id, key, amount, now_ms)
        connection.mute(throttle_ms)
        return throttle_ms

    def quota_window(self, connection: Connection, request: Request, key: str) -> int:
        """Return the most that a client may use at once; the greatest number without a quota."""
        if not self.quota_meter.is_needed:
            return sys.maxsize
        window = self.quota_meter.window(connection.principal, request.client_id or "", key)
        return sys.maxsize if window == math.inf else max(1, int(window))

    def _purgatory(self, name: str) -> DelayedOperationPurgatory:
        trace = self.cluster.trace
        on_completed = None
        if trace is not None and trace.operations:
            on_completed = partial(trace.record_completed, self.broker_id, name)
        purgatory = AsyncPurgatory(name, broker_id=self.broker_id, on_completed=on_completed)
        self.purgatories.append(purgatory)
        return purgatory.core

    def knows_leader(self, topic_partition: TopicPartition) -> bool:
        """Whether the elected leader of a partition is alive and not paused."""
        state = self.cluster.controller.state_of(topic_partition)
        leader = None if state is None else self.cluster.live_broker(state.leader)
        if leader is None or self.cluster.fault.is_paused(leader.broker_id):
            return False
        partition = leader.manager.partition(topic_partition)
        return partition is not None and partition.is_leader

    def _is_known(self, topic_partition: TopicPartition) -> bool:
        return self.cluster.controller.state_of(topic_partition) is not None

    def setting(self, name: str) -> str | None:
        """Return this broker's own value of a topic setting, as text, or None."""
        own = self.cluster.controller.broker_settings.get(self.broker_id, {}).get(name)
        return self.cluster.setting(name) if own is None else own

    def _min_insync_of(self, topic_partition: TopicPartition) -> int:
        settings = self.cluster.settings_of(topic_partition.topic)
        return int(effective_value(settings, "min.insync.replicas", self.setting))
