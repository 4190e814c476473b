"""Connections share the event loop: none keeps the others waiting, however much it asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvloop

from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from purgatory.cluster.api.registry import SUPPORTED
from purgatory.cluster.protocol.connection import (
    ITERATIONS_PER_PERIOD,
    PERIOD_S,
    Connection,
    FairScheduler,
    Response,
)
from purgatory.cluster.protocol.memory_pool import Limits, MemoryPool
from purgatory.cluster.protocol.wire import Request
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import record_batch, request_frame

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
_REQUEST_S = 0.001
_IN_A_ROUND = round(PERIOD_S / _REQUEST_S)


class Served:
    """Connections whose requests take a millisecond of a manual clock each, and the served ones."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.now_s = 0.0
        self.waits_turns = 0
        self.scheduler = FairScheduler(lambda: self.now_s)
        self._held = MemoryPool()

    def connect(self, name: str) -> Connection:
        """Return a new connection, whose client takes every answer."""

        def send(connection: Connection, request: Request, frame: bytes) -> None:
            connection.write(frame)

        async def serve(request: Request, connection: Connection) -> Response:
            self.now_s += _REQUEST_S
            self.order.append(name)
            if name == "waits":
                for _ in range(self.waits_turns):
                    await asyncio.sleep(0)
                self.order.append("answered")
            return None

        connection = Connection(
            serve,
            send,
            SUPPORTED,
            Limits(),
            self._held,
            self.scheduler,
            lambda _: True,
            lambda _: None,
        )
        connection.connection_made(MagicMock(is_closing=lambda: False))
        return connection


def _requests(count: int) -> bytes:
    frame = request_frame(18, 0, 1)
    return (len(frame).to_bytes(4, "big") + frame) * count


def _run(main: Callable[[Served], Awaitable[None]], loop: str = "asyncio") -> None:
    async def run() -> None:
        await main(Served())

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())


async def _turns_until(condition: Callable[[], bool]) -> int:
    turns = 0
    while not condition():
        await asyncio.sleep(0)
        turns += 1
        assert turns < 10_000
    return turns


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("floods", [1, 3, 20])
def test_single_request_waits_for_one_slice_of_each_busy_client(loop: str, floods: int) -> None:
    async def main(served: Served) -> None:
        for number in range(floods):
            served.connect(f"flood-{number}").data_received(_requests(500))
        await _turns_until(lambda: len(served.order) > 200)
        other = served.connect("other")
        for _ in range(10):
            served.order.clear()
            other.data_received(_requests(1))
            await _turns_until(lambda: "other" in served.order)
            before = served.order.index("other")
            assert before <= _IN_A_ROUND + floods, "a round, in which each ends what it has begun"

    _run(main, loop)


def test_busy_clients_get_equal_slices() -> None:
    async def main(served: Served) -> None:
        for name in "abcde":
            served.connect(name).data_received(_requests(1_000))
        await _turns_until(lambda: len(served.order) > 1_000)
        counts = [served.order.count(name) for name in "abcde"]
        assert max(counts) - min(counts) <= _IN_A_ROUND, counts

    _run(main)


def test_replicated_produce_completes_before_the_next_round() -> None:
    async def main(served: Served) -> None:
        served.waits_turns = ITERATIONS_PER_PERIOD - 1
        served.connect("flood").data_received(_requests(1_000))
        other = served.connect("waits")
        await _turns_until(lambda: len(served.order) > 100)
        asked_at = len(served.order)
        other.data_received(_requests(1))
        await _turns_until(lambda: "answered" in served.order)
        after = served.order[asked_at:]
        # A request in the middle of the turns between two rounds may see the next round.
        assert after.index("answered") <= _IN_A_ROUND + 1, after
        assert after.index("answered") - after.index("waits") <= _IN_A_ROUND + 1

    _run(main)


def test_single_client_has_whole_rounds() -> None:
    async def main(served: Served) -> None:
        served.connect("alone").data_received(_requests(1_000))
        turns = await _turns_until(lambda: len(served.order) == 1_000)
        assert turns <= 1_000 / _IN_A_ROUND * (ITERATIONS_PER_PERIOD + 2)

    _run(main)


def test_responses_to_pipelined_requests_are_joined() -> None:
    async def main(served: Served) -> None:
        connection = served.connect("client")
        connection._serve = _answering
        connection.data_received(_requests(_IN_A_ROUND * 2))
        transport = connection._transport
        assert isinstance(transport, MagicMock)
        await _turns_until(lambda: connection._held_bytes == 0)
        await asyncio.sleep(0)
        assert transport.write.call_count <= 3

    _run(main)


async def _answering(request: Request, connection: Connection) -> Response:
    return {"error_code": 0, "api_keys": ()}


def _produce(acks: int) -> dict[str, Any]:
    data = [{"name": "t", "partition_data": [{"index": 0, "records": record_batch([b"x"])}]}]
    return {"acks": acks, "timeout": timedelta(seconds=30), "topic_data": data}


_FLOOD = 8_000


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("acks", [0, 1])
def test_acks_all_completes_during_a_flood(loop: str, acks: int) -> None:
    """Counted in requests, not in time: the flood's requests served while the other one waits."""

    async def main() -> None:
        topics = [TopicSpec("t"), TopicSpec("flooded")]
        async with Cluster(ClusterConfig(topics=topics)) as cluster:
            state = cluster.controller.topics["flooded"].partitions[0]
            partition = cluster.brokers[state.leader].manager.partitions()
            (log,) = (one.log for one in partition if one.topic_partition.topic == "flooded")
            flooding = _produce(acks)
            flooding["topic_data"][0]["name"] = "flooded"
            leader = cluster.controller.topics["t"].partitions[0].leader
            async with (
                await RawClient.to(cluster, state.leader) as flood,
                await RawClient.to(cluster, leader) as other,
            ):
                frame = request_frame(0, 8, 1, flooding)
                flood.writer.write((len(frame).to_bytes(4, "big") + frame) * _FLOOD)
                reading = asyncio.create_task(flood.reader.read(-1))
                async with asyncio.timeout(60):
                    while not log.end_offset:
                        await asyncio.sleep(0)
                    waited = []
                    while log.end_offset < _FLOOD:
                        before = log.end_offset
                        answer = await other.ask(0, 9, _produce(-1))
                        assert answer.responses[0].partition_responses[0].error_code == 0
                        waited.append(log.end_offset - before)
                assert len(waited) > 10
                assert sorted(waited)[len(waited) // 2] < _FLOOD / 10, waited
                reading.cancel()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


@pytest.mark.parametrize("loop", LOOPS)
def test_acks_0_batches_are_appended_after_their_client_closes(loop: str) -> None:
    async def main() -> None:
        async with Cluster(ClusterConfig(brokers=1, topics=[TopicSpec("t")])) as cluster:
            frame = request_frame(0, 8, 1, _produce(0))
            wait = {"topics": [{"topic": "t", "partitions": [{"partition": 0}]}]}
            poll = request_frame(1, 4, 1, {**wait, "max_wait": timedelta(days=1), "min_bytes": 9})
            async with await RawClient.to(cluster) as client:
                for _ in range(2_000):
                    client.send(frame)
                client.send(poll)
                client.writer.close()
                await client.writer.wait_closed()
            (partition,) = cluster.brokers[1].manager.partitions()
            async with asyncio.timeout(60):
                while cluster.brokers[1].connection_count:
                    await asyncio.sleep(0.01)
            assert partition.log.end_offset == 2_000
            assert cluster.brokers[1]._held.total == 0

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


def test_disconnected_clients_requests_end_at_a_response() -> None:
    async def main(served: Served) -> None:
        serve = served.connect("gone")._serve

        async def answering(request: Request, connection: Connection) -> Response:
            answer = serve(request, connection)
            if isinstance(answer, Awaitable):
                await answer
            return await _answering(request, connection)

        connection = served.connect("gone")
        connection._serve = answering
        connection.data_received(_requests(1_000))
        connection.connection_lost(None)
        await _turns_until(lambda: connection._task is None)
        assert served.order == ["gone"]
        assert connection._quota.total == 0

    _run(main)
