"""The coordinators of groups and transactions at a simulated broker.

They are those of `purgatory.kafka`. Their records have no bytes here: what they say is the tag of
their batch. Markers travel between brokers as requests do: in order, each way taking its time, and
not while a link is cut.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from purgatory.kafka import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    EndTransaction,
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
    partition_of,
    write_markers,
)
from purgatory.kafka.groups.consumer_group_member import Principal
from purgatory.kafka.groups.group_manager import OnEnded
from purgatory.kafka.groups.subscription import KnownTopic
from purgatory.simulation.distributions import sampler, stream
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.network import Connection, Request, Server
from purgatory.simulation.runtime import Process
from purgatory.simulation.scenario import Scenario

OFFSETS_PARTITIONS = 5
_RECORD_BYTES = 100


def offsets_partition_of(group_id: str) -> TopicPartition:
    """The partition whose leader coordinates a group."""
    return TopicPartition(OFFSETS_TOPIC, partition_of(group_id, OFFSETS_PARTITIONS))


def simulated_groups(
    scenario: Scenario,
    engine: Engine,
    process: Process,
    manager: ReplicaManager,
    on_ended: OnEnded | None,
) -> GroupManager:
    """Return what coordinates groups in a broker's process."""
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
        # Ids are put in order where partitions are dealt out.
        new_member_id=lambda beginning: f"{beginning}{prefix}-{next(numbers):06}",
        now_ms=lambda: engine.now_ns() // NS_PER_MS,
        offsets_partitions=lambda: OFFSETS_PARTITIONS,
        is_known=lambda _: True,
        known_topics=_NoTopics(),
        on_ended=on_ended,
    )


class _NoTopics:
    """Simulated members are assigned partitions by their leader, who knows the topics."""

    topics: Mapping[str, KnownTopic] = MappingProxyType({})
    topics_version = 0

    def sees(self, viewer: Principal, topic: str) -> bool:
        """Whether somebody may know of a topic: of none, as there is none."""
        return False


class _TaggedOffsetsCodec:
    """Makes and reads record batches that have no bytes."""

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
        """Return what a batch commits and deletes, in its order."""
        return cast(Sequence[StoredEntry], batch.tag)


TRANSACTIONS_PARTITIONS = 5
_WRITE_TIMEOUT_MS = 5_000
_LOOK_AGAIN_NS = 50 * NS_PER_MS
Codes = Mapping[TopicPartition, ErrorCode]


def transactions_partition_of(transactional_id: str) -> TopicPartition:
    """The partition whose leader coordinates a transactional id."""
    return TopicPartition(
        TRANSACTIONS_TOPIC, partition_of(transactional_id, TRANSACTIONS_PARTITIONS)
    )


def simulated_transactions(
    broker: Server,
    process: Process,
    engine: Engine,
    routes: SimulatedMarkerChannel,
    new_producer_id: Callable[[], int],
    on_record: Callable[[str, TransactionRecord], object] | None,
) -> TransactionCoordinator:
    """Return what coordinates transactions in a broker's process."""
    routes.start()
    return TransactionCoordinator(
        broker.manager,
        TransactionConfig(),
        _TaggedTransactionsCodec(),
        routes,
        new_purgatory=process.purgatory,
        new_producer_id=new_producer_id,
        now_ms=lambda: engine.now_ns() // NS_PER_MS,
        state_partitions=lambda: TRANSACTIONS_PARTITIONS,
        on_record=on_record,
    )


class _TaggedTransactionsCodec:
    """Makes and reads record batches that have no bytes."""

    def batch(self, entries: Sequence[TransactionEntry]) -> RecordBatch:
        """Return a batch that says the state of ids."""
        return RecordBatch(0, len(entries), len(entries) * _RECORD_BYTES, tag=tuple(entries))

    def entries(self, batch: RecordBatch) -> Iterable[TransactionEntry]:
        """Return what a batch says, in its order."""
        return cast(Sequence[TransactionEntry], batch.tag)

    def marker(
        self, producer: ProducerIdentity, how: EndTransaction, coordinator_epoch: int
    ) -> RecordBatch:
        """Return the marker that ends a producer's transaction on a partition."""
        return RecordBatch.end_transaction(*producer, how, coordinator_epoch=coordinator_epoch)


class MarkersRequest(Request):
    """Markers on their way to the broker that leads their partitions."""

    __slots__ = ("_answered", "markers")
    api = "write_txn_markers"
    purgatory = "Produce"
    kind = "coordinator"

    def __init__(
        self,
        connection: Connection,
        markers: Mapping[TopicPartition, RecordBatch],
        answered: Callable[[Codes], object],
    ) -> None:
        super().__init__(connection)
        self.markers = markers
        self._answered = answered

    @property
    def timeout_ms(self) -> int:
        return _WRITE_TIMEOUT_MS

    @property
    def watch_keys(self) -> tuple[TopicPartition, ...]:
        return tuple(self.markers)

    def execute(self, broker: Server) -> None:
        assert broker.groups is not None, "brokers coordinate groups where there are transactions"
        write_markers(broker.manager, broker.groups, self.markers, self.respond)
        broker.look(self.markers)

    def deliver(self, answer: Any) -> None:
        self._answered(answer)

    def fail(self) -> None:
        self._answered({})


class _HeldAnswer(NamedTuple):
    """What a broker said of markers; ``come`` is told whether it comes too late."""

    broker_id: int
    markers: Mapping[TopicPartition, RecordBatch]
    come: Callable[[bool], object]


class SimulatedMarkerChannel:
    """The cluster, as the coordinator of one broker sees it (`MarkerChannel`).

    Each request has a connection to itself while it is under way: the markers of one transaction
    don't wait for those of others.

    Args:
        broker: the coordinator's.
        brokers: all brokers, by number.
        engine: runs the events.
        scenario: the settings.
        leader_of: says who leads a partition, -1 if nobody does; None: there is no such one.
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
        self._held: list[_HeldAnswer] = []
        self._is_to_look = False
        self._starts = 0

    def start(self) -> None:
        """A process began: what the one before was told reaches nobody."""
        self._starts += 1
        self._held.clear()

    def send_markers(
        self,
        broker_id: int,
        markers: Mapping[TopicPartition, RecordBatch],
        respond: Callable[[Codes], object],
    ) -> None:
        """As `MarkerChannel` says."""
        starts = self._starts
        refused = dict.fromkeys(markers, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._is_cut_off(broker_id):
            # Nothing is sent, so nothing can come late: who leads by then is asked again.
            self._engine.after(
                self._delay_ns(), self._broker.submit, self._tell, starts, respond, refused
            )
            return

        def answered(codes: Codes) -> None:
            self._idle[broker_id].append(connection)

            def come(is_late: bool) -> None:
                told = refused if is_late else {**refused, **codes}
                self._broker.submit(self._tell, starts, respond, told)

            self._bring(_HeldAnswer(broker_id, markers, come))

        connection = self._connection(broker_id)
        connection.send(MarkersRequest(connection, markers, answered))

    def _tell(self, starts: int, respond: Callable[[Codes], object], codes: Codes) -> None:
        if starts == self._starts:
            respond(codes)

    def _connection(self, broker_id: int) -> Connection:
        idle = self._idle[broker_id]
        if idle:
            return idle.pop()
        return Connection(self._engine, self._brokers[broker_id], self._delay_ns)

    def _bring(self, answer: _HeldAnswer) -> None:
        """Bring a response unless the link is cut; if others lead by now, it is not needed."""
        if not self._is_cut_off(answer.broker_id):
            answer.come(False)
        elif any(self.leader_of(one) != answer.broker_id for one in answer.markers):
            answer.come(True)
        else:
            self._held.append(answer)
            if not self._is_to_look:
                self._is_to_look = True
                self._engine.after(_LOOK_AGAIN_NS, self._look_again)

    def _look_again(self) -> None:
        self._is_to_look = False
        self.faults_changed()

    def _is_cut_off(self, broker_id: int) -> bool:
        faults = self._broker.faults
        return bool(faults.active) and faults.cuts_off(self._broker.id, broker_id)

    def faults_changed(self) -> None:
        """Go on with what no fault holds any more."""
        held, self._held = self._held, []
        for answer in held:
            self._bring(answer)
