"""Plays a story in a cluster of sockets and a real clock, or through a proxy in front of one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kio.records.readers import read_batch

from purgatory.cluster import Cluster, ClusterConfig, ClusterError, TopicSpec
from purgatory.cluster.broker import Broker
from purgatory.cluster.fault_injection import ConnectionFaults
from purgatory.cluster.listeners import Endpoint
from purgatory.kafka import (
    TRANSACTIONS_TOPIC,
    ErrorCode,
    ProducerIdentity,
    RecordBatch,
    TopicPartition,
    group_partition,
)
from purgatory.kafka.faults import CountedFault, Fault
from purgatory.kafka.faults.active_faults import ActiveFault
from purgatory.proxy import Proxy, ProxyConfig
from purgatory.proxy.faults import REFUSALS
from tests.wire.cluster.wire_values import read_response, record_batch, request_frame
from tests.wire.drivers.decisions import (
    MARKERS,
    Decisions,
    PartitionDecisions,
    ReplicaState,
    decided,
)
from tests.wire.drivers.driver import Responses
from tests.wire.drivers.steps import (
    BROKERS,
    MIN_INSYNC,
    PARTITIONS,
    TOPIC,
    TRANSACTION_MS,
    TRANSACTIONAL_ID,
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

_SHORT_LAG_MS = 500
_NO_LAG_MS = 100_000_000
_PATIENCE_S = 20.0
_LOOK_S = 0.001
_REST_S = 0.01
_LONG_REST_S = 0.3
"""A rest in which something would change if anything still did."""
"""The time in which nothing may change any more."""

_PRODUCE, _FETCH, _INIT, _ADD, _END = 0, 1, 22, 24, 26
_VERSIONS = {_PRODUCE: 9, _FETCH: 11, _INIT: 4, _ADD: 3, _END: 3}
_API_OF = {"init": _INIT, "add": _ADD, "commit": _END, "abort": _END}
_NOBODY = ProducerIdentity(-1, -1)
_STATE_PARTITIONS = 5
"""As many as the simulation has."""

PAST_PROXY = {
    **REFUSALS,
    "pause": "brokers replicate past the proxy, and a broker that is paused replicates nothing",
}
"""For each kind of fault that differs at a proxy: the reason."""


class ClusterDriver:
    """A cluster on an event loop of its own, which runs only while a step is taken or settles.

    Args:
        story: the story to play.
        folder: of the logs; None: in memory.
    """

    def __init__(self, story: Story, folder: Path | None = None) -> None:
        self.responses = Responses()
        self._lag_ms = _SHORT_LAG_MS if story.drops_laggards else _NO_LAG_MS
        config = ClusterConfig(
            brokers=len(BROKERS),
            topics=[TopicSpec(TOPIC, PARTITIONS)],
            min_insync_replicas=MIN_INSYNC,
            replica_max_lag_ms=self._lag_ms,
            data_dir=folder,
            transactions_partitions=_STATE_PARTITIONS,
        )
        self._has_transactions = story.has_transactions
        self._producers: dict[str, ProducerIdentity] = {}
        self._runner = asyncio.Runner()
        self._cluster = Cluster(config)
        self._begun: list[tuple[Fault, ActiveFault]] = []
        self._clients: dict[tuple[str, int], _Client] = {}
        self._unnamed = itertools.count()

    def __enter__(self) -> Self:
        self._runner.run(self._start())
        return self

    async def _start(self) -> None:
        await self._cluster.start()
        if self._has_transactions:
            # Create the topic whose partitions' leaders coordinate transactions.
            next(iter(self._cluster.brokers.values())).cluster.transactions_partitions()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._runner.run(self._stop())
        self._runner.close()

    async def _stop(self) -> None:
        for client in self._clients.values():
            await client.close()
        await self._cluster.stop()

    def take(self, step: Step) -> None:
        """Begin a step."""
        self._runner.run(self._take(step))

    def settle(self, expected: Decisions | None = None) -> Decisions:
        """Wait until the decisions are as expected and stay so, or until a timeout.

        Without an expectation, wait until they stop changing.
        """
        return self._runner.run(self._settle(expected))

    async def _take(self, step: Step) -> None:
        match step:
            case Produce():
                identity = None if step.transaction is None else self._producers[step.transaction]
                await self._ask(step, step.client, _PRODUCE, _produce_values(step, identity))
            case Transact():
                await self._transact(step)
            case WaitForTimeout():
                await asyncio.sleep(TRANSACTION_MS * 1.2 / 1_000)
            case Read():
                await self._ask(step, "", _FETCH, _fetch_values(step))
            case Begin():
                await self._begin(step.fault)
            case End():
                for fault, begun in self._begun:
                    if fault == step.fault:
                        begun.end()
            case WaitForLag():
                await asyncio.sleep(self._lag_ms * 2.5 / 1_000)

    async def _settle(self, expected: Decisions | None) -> Decisions:
        if expected is None:
            before = None
            while before != (before := self._decisions()):
                await asyncio.sleep(_LONG_REST_S)
            return self._decisions()
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while True:
                    while self._decisions() != expected:
                        await asyncio.sleep(_LOOK_S)
                    await asyncio.sleep(_REST_S)
                    if self._decisions() == expected:
                        break
        return self._decisions()

    # Clients.

    async def _ask(
        self, step: Produce | Read, client: str, api_key: int, values: dict[str, Any]
    ) -> None:
        number = self.responses.ask(step)
        broker_id = step.broker
        if broker_id is None:
            broker_id = self._state(step.partition).leader
        if broker_id < 0:
            self.responses.take(number, "NO LEADER")
            return
        if isinstance(step, Produce) and step.acks == 0:
            self.responses.take(number, "sent")
        await self._send(number, client, broker_id, api_key, values)

    async def _transact(self, step: Transact) -> None:
        number = self.responses.ask(step)
        place = TopicPartition(
            TRANSACTIONS_TOPIC, group_partition(TRANSACTIONAL_ID, _STATE_PARTITIONS)
        )
        state = self._cluster.controller.state_of(place)
        assert state is not None
        if state.leader < 0:
            self.responses.take(number, "NO LEADER")
            return
        identity = _NOBODY if step.asks == "init" else self._producers[step.producer]
        values = _transact_values(step, identity)
        known = await self._send(number, "", state.leader, _API_OF[step.asks], values)
        known.on_init = partial(self._producers.__setitem__, step.producer)

    async def _send(
        self, number: int, client: str, broker_id: int, api_key: int, values: dict[str, Any]
    ) -> _Client:
        key = (client or str(next(self._unnamed)), broker_id)
        known = self._clients.get(key)
        if known is None or known.is_closed:
            known = self._clients[key] = _Client(self.responses)
        await known.ask(self._address(broker_id), number, api_key, values)
        return known

    def _address(self, broker_id: int) -> Endpoint:
        """Return the endpoint at which clients reach a broker."""
        broker = self._cluster.brokers[broker_id]
        return Endpoint(broker.host, broker.port)

    # Faults.

    def _faults(self, fault: Fault) -> ConnectionFaults:
        """Return the injector of this kind of fault: the cluster's or a proxy's."""
        return self._cluster.fault

    async def _begin(self, fault: Fault) -> None:
        try:
            self._begun.append((fault, await self._faults(fault).begin(fault)))
        except ClusterError:
            self.responses.refuse(fault.kind)

    # Decisions.

    def _state(self, partition: int) -> Any:
        state = self._cluster.controller.state_of(TopicPartition(TOPIC, partition))
        assert state is not None
        return state

    def _decisions(self) -> Decisions:
        return Decisions(
            [self._decided(number) for number in range(PARTITIONS)],
            self.responses.texts,
            [begun.uses for fault, begun in self._begun if isinstance(fault, CountedFault)],
            self.responses.acknowledged,
        )

    def _decided(self, number: int) -> PartitionDecisions:
        state = self._state(number)
        topic_partition = TopicPartition(TOPIC, number)
        return decided(
            state.leader,
            state.leader_epoch,
            state.isr,
            {
                broker_id: self._replica_state(broker, topic_partition)
                for broker_id, broker in self._cluster.brokers.items()
            },
        )

    def _replica_state(self, broker: Broker, topic_partition: TopicPartition) -> ReplicaState | str:
        if not broker.alive:
            return "dead"
        if self._cluster.fault.is_paused(broker.broker_id):
            return "paused"
        replica = broker.manager.partition(topic_partition)
        assert replica is not None
        batches = replica.log.read(0, 2**31) if replica.log.end_offset else ()
        letters = "".join(map(_letters_or_marker, batches))
        return ReplicaState(letters, replica.high_watermark)


class ProxyDriver(ClusterDriver):
    """A cluster behind a proxy; the proxy injects the faults that it supports."""

    async def _start(self) -> None:
        await super()._start()
        addresses = self._cluster.bootstrap_servers.split(",")
        self._proxy = Proxy(ProxyConfig(to=addresses))
        await self._proxy.start()

    async def _stop(self) -> None:
        await self._proxy.stop()
        await super()._stop()

    def _address(self, broker_id: int) -> Endpoint:
        return self._proxy.brokers[broker_id].endpoint

    def _faults(self, fault: Fault) -> ConnectionFaults:
        return self._cluster.fault if fault.kind in PAST_PROXY else self._proxy.fault


class _Client:
    """A connection to one broker, whose responses are recorded as they arrive."""

    def __init__(self, responses: Responses) -> None:
        self.is_closed = False
        self._responses = responses
        self._asked: dict[int, int] = {}
        """The API of each request without a response, by its number."""
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter
        self.on_init: Callable[[ProducerIdentity], object]
        """Called with the identity of a transactional producer."""

    async def ask(
        self, address: Endpoint, number: int, api_key: int, values: dict[str, Any]
    ) -> None:
        """Send a request; if the broker is dead, the connection is lost."""
        self._asked[number] = api_key
        if self._reading is None:
            try:
                reader, self._writer = await asyncio.open_connection(*address)
            except ConnectionError:
                self._lose_all()
                return
            self._reading = asyncio.create_task(self._read(reader))
        frame = request_frame(api_key, _VERSIONS[api_key], number, values)
        self._writer.write(len(frame).to_bytes(4, "big") + frame)

    async def close(self) -> None:
        """Close the connection."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
            self._writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(4), "big")
                self._take(await reader.readexactly(length))
        except (ConnectionError, asyncio.IncompleteReadError):
            self._writer.transport.abort()
            self._lose_all()

    def _take(self, frame: bytes) -> None:
        number = int.from_bytes(frame[:4], "big")
        api_key = self._asked.pop(number, None)
        if api_key is None:
            return  # a duplicate
        body = read_response(api_key, _VERSIONS[api_key], frame)[1]
        if api_key in _API_OF.values():
            self._responses.take(number, self._text_of(api_key, body))
            return
        [topic] = body.responses
        if api_key == _FETCH:
            [partition] = topic.partitions
            records = bytes(partition.records or b"")
            aborted = "".join(
                f" aborted at {one.first_offset}" for one in partition.aborted_transactions or ()
            )
            text = f"{ErrorCode(partition.error_code).name} {_letters_of_all(records)}{aborted}"
        else:
            [partition] = topic.partition_responses
            at = f" at {partition.base_offset}" if partition.base_offset >= 0 else ""
            text = f"{ErrorCode(partition.error_code).name}{at}"
        self._responses.take(number, text)

    def _text_of(self, api_key: int, body: Any) -> str:
        if api_key == _ADD:
            [topic] = body.results_by_topic_v3_and_below
            [partition] = topic.results_by_partition
            return ErrorCode(partition.partition_error_code).name
        error = ErrorCode(body.error_code).name
        if api_key == _END:
            return error
        if not body.error_code:
            self.on_init(ProducerIdentity(body.producer_id, body.producer_epoch))
        return f"{error} {body.producer_epoch}"

    def _lose_all(self) -> None:
        self.is_closed = True
        asked, self._asked = self._asked, {}
        for number in asked:
            self._responses.take(number, "CONNECTION LOST")


def _transact_values(step: Transact, identity: ProducerIdentity) -> dict[str, Any]:
    values = {"transactional_id": TRANSACTIONAL_ID, **identity._asdict()}
    match step.asks:
        case "init":
            return {**values, "transaction_timeout": timedelta(milliseconds=step.timeout_ms)}
        case "add":
            values["topics"] = [{"name": TOPIC, "partitions": [step.partition]}]
            return {f"v3_and_below_{name}": value for name, value in values.items()}
    return {**values, "committed": step.asks == "commit"}


def _produce_values(step: Produce, identity: ProducerIdentity | None) -> dict[str, Any]:
    values = [step.letter.encode()] * step.records
    if identity is not None:
        records = record_batch(
            values, identity.producer_id, step.sequence, identity.producer_epoch, transactional=True
        )
    elif step.producer is None:
        records = record_batch(values)
    else:
        records = record_batch(values, step.producer, step.sequence, epoch=0)
    data = [{"index": step.partition, "records": records}]
    return {
        "transactional_id": None if identity is None else TRANSACTIONAL_ID,
        "acks": step.acks,
        "timeout": timedelta(milliseconds=step.timeout_ms),
        "topic_data": [{"name": TOPIC, "partition_data": data}],
    }


def _fetch_values(step: Read) -> dict[str, Any]:
    partition = {
        "partition": step.partition,
        "fetch_offset": 0,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
    }
    return {
        "replica_id": -1,
        "max_wait": timedelta(0),
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": int(step.committed),
        "session_epoch": -1,
        "topics": [{"topic": TOPIC, "partitions": [partition]}],
    }


def _letters(batch: bytes) -> str:
    return "".join((record.value or b"").decode() for record in read_batch(batch, 0)[0].records)


def _letters_or_marker(batch: RecordBatch) -> str:
    return _letters(batch.to_bytes()) if batch.control is None else MARKERS[batch.control]


def _letters_of_all(batches: bytes) -> str:
    letters, start = "", 0
    while start < len(batches):
        _, size = read_batch(batches, start)
        letters += _letters_or_marker(RecordBatch.from_bytes(batches[start : start + size]))
        start += size
    return letters
