"""Plays a story without transactions in virtual time, over the simulated network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self, cast

from purgatory.kafka import (
    FetchParams,
    PartitionFetch,
    PartitionFetchResponse,
    PartitionProduceResponse,
    RecordBatch,
    TopicPartition,
)
from purgatory.kafka.faults import CountedFault, Fault, Kill
from purgatory.kafka.faults.active_faults import ActiveFault
from purgatory.simulation import Simulation
from purgatory.simulation.broker import Broker
from purgatory.simulation.engine import NS_PER_MS
from purgatory.simulation.faults import SimulatedFaults
from purgatory.simulation.messages import Batch, GroupCounts, GroupTotals, PartitionQueue
from purgatory.simulation.network import Connection, Request, Server
from purgatory.simulation.producer import Producer, ProduceRequest
from purgatory.simulation.scenario import (
    ClusterSection,
    FollowersSection,
    Scenario,
    TopicSection,
)
from purgatory.simulation.scenario_file import LoadedScenario
from tests.wire.drivers.decisions import Decisions, PartitionDecisions, ReplicaState, decided
from tests.wire.drivers.driver import Responses
from tests.wire.drivers.steps import (
    BROKERS,
    MIN_INSYNC,
    PARTITIONS,
    TOPIC,
    Begin,
    End,
    Produce,
    Read,
    Step,
    Story,
    Transact,
    WaitForLag,
    WaitForTimeout,
)

_SETTLE_MS = 200
_SHORT_LAG_MS = 1_000
_NO_LAG_MS = 1_000_000_000


class SimulatedDriver:
    """A simulated cluster. Its brokers are 0, 1 and 2: those of the story less one.

    The controller notices a death at once, as in a cluster that is one process; never a pause.
    """

    def __init__(self, story: Story) -> None:
        self.responses = Responses()
        self._lag_ms = _SHORT_LAG_MS if story.drops_laggards else _NO_LAG_MS
        scenario = Scenario(
            name="story",
            duration_ms=1,
            cluster=ClusterSection(
                brokers=len(BROKERS),
                session_timeout_ms=_NO_LAG_MS,
                replica_lag_time_max_ms=self._lag_ms,
            ),
            topic=TopicSection(
                name=TOPIC,
                partitions=PARTITIONS,
                replication_factor=len(BROKERS),
                min_insync_replicas=MIN_INSYNC,
            ),
            followers=FollowersSection(fetch_max_wait_ms=10),
        )
        self._run = run = Simulation(LoadedScenario(scenario, Path(), "story"))
        for broker in run.brokers:
            broker.start()
        run.controller.set_up()
        self._faults = SimulatedFaults(
            run.scenario, run.engine, run.brokers, run.controller, run.event
        )
        for broker in run.brokers:
            broker.faults = self._faults
        self._begun: list[tuple[Fault, ActiveFault]] = []
        self._connections: dict[tuple[str, int], Connection] = {}

    def __enter__(self) -> Self:
        self._advance(_SETTLE_MS)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for broker in self._run.brokers:
            broker.close()
        self._run.engine.close()

    def take(self, step: Step) -> None:
        """Run a step."""
        match step:
            case Produce():
                self._produce(step)
            case Read():
                self._read(step)
            case Transact() | WaitForTimeout():
                raise ValueError(f"no transactions are simulated: {step}")
            case Begin():
                self._begin(step.fault)
            case End():
                for fault, begun in self._begun:
                    if fault == step.fault:
                        begun.end()
            case WaitForLag():
                self._advance(self._lag_ms * 5 // 2)

    def settle(self, expected: Decisions | None = None) -> Decisions:
        """Advance virtual time by much more than any message, backoff or short timeout takes."""
        self._advance(_SETTLE_MS)
        self._run.invariants.raise_if_violated()
        return Decisions(
            [self._decided(number) for number in range(PARTITIONS)],
            self.responses.texts,
            [begun.uses for fault, begun in self._begun if isinstance(fault, CountedFault)],
            self.responses.acknowledged,
        )

    def _advance(self, duration_ms: int) -> None:
        is_over: list[bool] = []
        self._run.engine.call_after(duration_ms * NS_PER_MS, is_over.append, True)
        self._run.engine.run(lambda: not is_over)

    # Clients.

    def _produce(self, step: Produce) -> None:
        number = self.responses.ask(step)
        broker = self._asked(step)
        if broker is None:
            self.responses.take(number, "NO LEADER")
            return
        connection = self._connection(step.client, broker)
        producer = cast(Producer, _ProducingClient(self.responses, number, step))
        connection.send(ProduceRequest(producer, connection, [_LetterBatch(step)]))

    def _read(self, step: Read) -> None:
        number = self.responses.ask(step)
        broker = self._asked(step)
        if broker is None:
            self.responses.take(number, "NO LEADER")
            return
        connection = self._connection("", broker)
        connection.send(_ReadRequest(connection, self.responses, number, step))

    def _asked(self, step: Produce | Read) -> Broker | None:
        if step.broker is not None:
            return self._run.brokers[step.broker - 1]
        leader = self._run.controller.partition_leader(step.partition)
        return None if leader < 0 else self._run.brokers[leader]

    def _connection(self, client: str, broker: Broker) -> Connection:
        known = self._connections.get((client, broker.id)) if client else None
        if known is None:
            known = Connection(
                self._run.engine, broker, lambda: NS_PER_MS // 10, client_id="a-test"
            )
            self._connections[client, broker.id] = known
        return known

    # Faults.

    def _begin(self, fault: Fault) -> None:
        begun = self._faults.begin(_with_ids_from_0(fault))
        if begun is None:
            self.responses.refuse(fault.kind)
            return
        self._begun.append((fault, begun))
        if isinstance(fault, Kill):
            self._run.controller.fence_broker(fault.broker - 1)

    # Decisions.

    def _decided(self, number: int) -> PartitionDecisions:
        topic_partition = TopicPartition(TOPIC, number)
        state = self._run.controller.partition_state(topic_partition)
        return decided(
            state.leader + 1 if state.leader >= 0 else -1,
            state.leader_epoch,
            [broker + 1 for broker in state.isr],
            {
                broker.id + 1: _replica_state(broker, topic_partition)
                for broker in self._run.brokers
            },
        )


class _LetterBatch(Batch):
    """A batch whose records are the letter of a step; the ledger counts none of its messages."""

    def __init__(self, step: Produce) -> None:
        totals = GroupTotals("story", step.acks, GroupCounts())
        queue = PartitionQueue(0, totals, TopicPartition(TOPIC, step.partition))
        super().__init__(queue, [], 100)
        self._step = step

    def __str__(self) -> str:
        return self._step.letter

    def record_batch(self) -> RecordBatch:
        step = self._step
        if step.producer is None:
            return RecordBatch(0, step.records, 100, tag=self)
        return RecordBatch(
            0,
            step.records,
            100,
            producer_id=step.producer,
            producer_epoch=0,
            base_sequence=step.sequence,
            tag=self,
        )


class _ProducingClient:
    """A stand-in for a simulated producer of one batch."""

    def __init__(self, responses: Responses, number: int, step: Produce) -> None:
        self.group = SimpleNamespace(
            acks=step.acks, section=SimpleNamespace(timeout_ms=step.timeout_ms)
        )
        self._responses = responses
        self._number = number
        if step.acks == 0:
            responses.take(number, "sent")

    def handle_response(
        self, request: Request, responses: dict[TopicPartition, PartitionProduceResponse]
    ) -> None:
        [response] = responses.values()
        at = f" at {response.base_offset}" if response.base_offset >= 0 else ""
        self._responses.take(self._number, f"{response.error.name}{at}")

    def handle_disconnect(self, request: Request) -> None:
        self._responses.take(self._number, "CONNECTION LOST")


class _ReadRequest(Request):
    """A consumer's fetch that never waits."""

    __slots__ = ("_number", "_responses", "_topic_partition")
    api = "fetch"
    purgatory = "Fetch"
    kind = "consumer"

    def __init__(
        self, connection: Connection, responses: Responses, number: int, step: Read
    ) -> None:
        super().__init__(connection)
        self._responses = responses
        self._number = number
        self._topic_partition = TopicPartition(TOPIC, step.partition)

    @property
    def timeout_ms(self) -> int:
        return 0

    @property
    def watch_keys(self) -> tuple[TopicPartition, ...]:
        return (self._topic_partition,)

    def execute(self, broker: Server) -> None:
        fetches = {self._topic_partition: PartitionFetch(0)}
        broker.manager.fetch_records(
            FetchParams(max_wait_ms=0, from_followers=True), fetches, self.respond
        )

    def deliver(self, responses: Any) -> None:
        [response] = cast(dict[TopicPartition, PartitionFetchResponse], responses).values()
        self._responses.take(self._number, f"{response.error.name} {_letters(response.batches)}")

    def fail(self) -> None:
        self._responses.take(self._number, "CONNECTION LOST")


def _with_ids_from_0(fault: Fault) -> Fault:
    named = ("broker", "a", "b")
    ids = {name: id_ - 1 for name, id_ in vars(fault).items() if name in named and id_ is not None}
    return replace(fault, **ids)


def _replica_state(broker: Broker, topic_partition: TopicPartition) -> ReplicaState | str:
    if not broker.alive:
        return "dead"
    if broker.paused:
        return "paused"
    replica = broker.manager.partition(topic_partition)
    assert replica is not None
    batches = replica.log.read(0, 2**31) if replica.log.end_offset else ()
    return ReplicaState(_letters(batches), replica.high_watermark)


def _letters(batches: Sequence[RecordBatch]) -> str:
    return "".join(str(batch.tag) * batch.record_count for batch in batches)
