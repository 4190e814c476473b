"""The coordinators of groups and transactions at a simulated broker.

They are those of `purgatory.kafka`. Their records have no bytes here: the entries are the tag of
their batch. Markers are sent between brokers as requests are: in order, with network delays, and
not while a link is cut.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import NamedTuple, cast

from purgatory.kafka import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    ErrorCode,
    GroupConfig,
    GroupManager,
    ProducerIdentity,
    RecordBatch,
    ReplicaManager,
    StoredEntry,
    TopicPartition,
    TransactionConfig,
    TransactionCoordinator,
    TransactionEntry,
    TransactionRecord,
    TransactionResult,
    group_partition,
    write_markers,
)
from purgatory.kafka.groups.consumer_group_member import Principal
from purgatory.kafka.groups.group_manager import OnEnded
from purgatory.kafka.groups.subscription import KnownTopic
from purgatory.simulation.distributions import sampler, stream
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.network import CallbackRequest, Connection, OnResponse, Server
from purgatory.simulation.runtime import Process
from purgatory.simulation.scenario import Scenario

OFFSETS_PARTITIONS = 5
_RECORD_BYTES = 100


def offsets_partition_of(group_id: str) -> TopicPartition:
    """The partition whose leader coordinates a group."""
    return TopicPartition(OFFSETS_TOPIC, group_partition(group_id, OFFSETS_PARTITIONS))


def group_manager(broker: Server) -> GroupManager:
    """Return the coordinator of a broker's groups."""
    assert broker.groups is not None, "brokers coordinate groups where there are any"
    return broker.groups


def simulated_groups(
    scenario: Scenario,
    engine: Engine,
    process: Process,
    manager: ReplicaManager,
    on_ended: OnEnded | None,
) -> GroupManager:
    """Return the group coordinator of a broker's process."""
    numbers = count(1)
    prefix = f"{manager.broker_id}-{engine.now_ns()}"
    return GroupManager(
        manager,
        GroupConfig(
            initial_rebalance_delay_ms=scenario.cluster.initial_rebalance_delay_ms,
            min_session_timeout_ms=1,
        ),
        _TaggedOffsetsCodec(),
        new_purgatory=process.purgatory,
        # Assignment sorts the ids.
        new_member_id=lambda beginning: f"{beginning}{prefix}-{next(numbers):06}",
        now_ms=lambda: engine.now_ns() // NS_PER_MS,
        offsets_partitions=lambda: OFFSETS_PARTITIONS,
        is_known=lambda _: True,
        known_topics=_EmptyTopics(),
        on_ended=on_ended,
    )


class _EmptyTopics:
    """Simulated members are assigned partitions by their leader, who knows the topics."""

    topics: Mapping[str, KnownTopic] = MappingProxyType({})
    topics_version = 0

    def may_describe(self, requester: Principal, topic: str) -> bool:
        """As `KnownTopics`: False, as there are no topics."""
        return False


class _TaggedOffsetsCodec:
    """Encodes and decodes record batches that have no bytes."""

    def batch(
        self, entries: Sequence[StoredEntry], producer: ProducerIdentity | None = None
    ) -> RecordBatch:
        """Return a batch that commits or deletes offsets."""
        size_bytes = len(entries) * _RECORD_BYTES
        if producer is None:
            return RecordBatch(0, len(entries), size_bytes, tag=tuple(entries))
        return RecordBatch(
            0,
            len(entries),
            size_bytes,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            tag=tuple(entries),
            transactional=True,
        )

    def entries(self, batch: RecordBatch) -> Iterable[StoredEntry]:
        """Return the entries of a batch, in order."""
        return cast(Sequence[StoredEntry], batch.tag)


TRANSACTIONS_PARTITIONS = 5
_WRITE_TIMEOUT_MS = 5_000
_CHECK_INTERVAL_NS = 50 * NS_PER_MS
Codes = Mapping[TopicPartition, ErrorCode]


def transactions_partition_of(transactional_id: str) -> TopicPartition:
    """The partition whose leader coordinates a transactional id."""
    return TopicPartition(
        TRANSACTIONS_TOPIC, group_partition(transactional_id, TRANSACTIONS_PARTITIONS)
    )


def simulated_transactions(
    broker: Server,
    process: Process,
    engine: Engine,
    channel: SimulatedMarkerChannel,
    new_producer_id: Callable[[], int],
    on_record: Callable[[str, TransactionRecord], object] | None,
) -> TransactionCoordinator:
    """Return the transaction coordinator of a broker's process."""
    channel.start()
    return TransactionCoordinator(
        broker.manager,
        TransactionConfig(),
        _TaggedTransactionsCodec(),
        channel,
        new_purgatory=process.purgatory,
        new_producer_id=new_producer_id,
        now_ms=lambda: engine.now_ns() // NS_PER_MS,
        state_partitions=lambda: TRANSACTIONS_PARTITIONS,
        on_record=on_record,
    )


class _TaggedTransactionsCodec:
    """Makes and reads record batches that have no bytes."""

    def batch(self, entries: Sequence[TransactionEntry]) -> RecordBatch:
        """Return a batch with the states of transactional ids."""
        return RecordBatch(0, len(entries), len(entries) * _RECORD_BYTES, tag=tuple(entries))

    def entries(self, batch: RecordBatch) -> Iterable[TransactionEntry]:
        """Return the entries of a batch, in order."""
        return cast(Sequence[TransactionEntry], batch.tag)

    def marker(
        self, producer: ProducerIdentity, result: TransactionResult, coordinator_epoch: int
    ) -> RecordBatch:
        """Return the marker that ends a producer's transaction on a partition."""
        return RecordBatch.end_transaction(*producer, result, coordinator_epoch=coordinator_epoch)


class MarkersRequest(CallbackRequest):
    """Markers on their way to the broker that leads their partitions."""

    __slots__ = ("markers",)
    api = "write_txn_markers"
    purgatory = "Produce"
    kind = "coordinator"

    def __init__(
        self,
        connection: Connection,
        markers: Mapping[TopicPartition, RecordBatch],
        on_response: OnResponse,
    ) -> None:
        super().__init__(connection, on_response, _WRITE_TIMEOUT_MS, tuple(markers))
        self.markers = markers

    def execute(self, broker: Server) -> None:
        write_markers(broker.manager, group_manager(broker), self.markers, self.respond)
        broker.observe_commits(self.markers)


class _DelayedResponse(NamedTuple):
    """A response to markers; ``deliver`` takes whether it is too late."""

    broker_id: int
    markers: Mapping[TopicPartition, RecordBatch]
    deliver: Callable[[bool], object]


class SimulatedMarkerChannel:
    """The cluster, as the coordinator of one broker sees it (`MarkerChannel`).

    Each request has its own connection while it is under way: the markers of one transaction don't
    wait for those of others.

    Args:
        broker: the coordinator's.
        brokers: all brokers, by number.
        leader_of: returns a partition's leader, -1 if there is none; None: no such partition.
    """

    def __init__(
        self,
        broker: Server,
        brokers: Sequence[Server],
        engine: Engine,
        scenario: Scenario,
        leader_of: Callable[[TopicPartition], int | None],
    ) -> None:
        self.leader_of = leader_of
        self._broker = broker
        self._brokers = brokers
        self._engine = engine
        self._delay_ns = sampler(
            scenario.network.delay_ms, stream(scenario.seed, "markers", broker.id), NS_PER_MS
        )
        self._idle: dict[int, list[Connection]] = {other.id: [] for other in brokers}
        self._delayed_responses: list[_DelayedResponse] = []
        self._recheck_scheduled = False
        self._starts = 0

    def start(self) -> None:
        """A process began: discard responses to the former one."""
        self._starts += 1
        self._delayed_responses.clear()

    def send_markers(
        self,
        broker_id: int,
        markers: Mapping[TopicPartition, RecordBatch],
        respond: Callable[[Codes], object],
    ) -> None:
        """See `MarkerChannel`."""
        starts = self._starts
        errors = dict.fromkeys(markers, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._is_isolated(broker_id):
            # Nothing is sent, so no response can come late; the current leader is tried again.
            self._engine.call_after(
                self._delay_ns(), self._broker.submit, self._respond, starts, respond, errors
            )
            return

        def on_response(codes: Codes | None) -> None:
            self._idle[broker_id].append(connection)

            def deliver(is_delayed: bool) -> None:
                all_codes = errors if is_delayed else {**errors, **(codes or {})}
                self._broker.submit(self._respond, starts, respond, all_codes)

            self._deliver_or_delay(_DelayedResponse(broker_id, markers, deliver))

        connection = self._connection(broker_id)
        connection.send(MarkersRequest(connection, markers, on_response))

    def _respond(self, starts: int, respond: Callable[[Codes], object], codes: Codes) -> None:
        if starts == self._starts:
            respond(codes)

    def _connection(self, broker_id: int) -> Connection:
        idle = self._idle[broker_id]
        if idle:
            return idle.pop()
        return Connection(self._engine, self._brokers[broker_id], self._delay_ns)

    def _deliver_or_delay(self, response: _DelayedResponse) -> None:
        """Deliver a response unless the link is cut; as late if the leaders have changed."""
        if not self._is_isolated(response.broker_id):
            response.deliver(False)
        elif any(
            self.leader_of(topic_partition) != response.broker_id
            for topic_partition in response.markers
        ):
            response.deliver(True)
        else:
            self._delayed_responses.append(response)
            if not self._recheck_scheduled:
                self._recheck_scheduled = True
                self._engine.call_after(_CHECK_INTERVAL_NS, self._check_delayed)

    def _check_delayed(self) -> None:
        self._recheck_scheduled = False
        self.on_faults_changed()

    def _is_isolated(self, broker_id: int) -> bool:
        faults = self._broker.faults
        return bool(faults.active) and faults.cuts_link(self._broker.id, broker_id)

    def on_faults_changed(self) -> None:
        """Deliver the responses that no fault delays."""
        delayed, self._delayed_responses = self._delayed_responses, []
        for response in delayed:
            self._deliver_or_delay(response)
