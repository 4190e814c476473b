"""Faults in a running cluster: each begins, has its effect and ends, and wrong ones are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from purgatory.cluster import (
    ActiveFault,
    Cluster,
    ClusterConfig,
    ClusterError,
    TopicSpec,
)
from purgatory.cluster.control.control import begin_fault
from purgatory.kafka import ErrorCode, TopicPartition
from purgatory.kafka.faults import KINDS
from tests.wire.cluster.conftest import eventually, isr_of, leader_of
from tests.wire.cluster.raw_client import RawClient
from tests.wire.cluster.wire_values import record_batch, request_frame

_ORDERS = TopicPartition("orders", 0)


def _run(main: Callable[[Cluster], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        config = ClusterConfig(brokers=3, topics=[TopicSpec("orders")], **options)
        async with Cluster(config) as cluster:
            await main(cluster)

    uvloop.run(run())


def _end(cluster: Cluster, broker: int) -> int:
    partition = cluster.brokers[broker].manager.partition(_ORDERS)
    assert partition is not None
    return partition.log_end_offset


def _produce(timeout_ms: int = 20_000, acks: int = -1) -> dict[str, Any]:
    data = [{"index": 0, "records": record_batch([b"x"])}]
    topics = [{"name": "orders", "partition_data": data}]
    return {"acks": acks, "timeout": timedelta(milliseconds=timeout_ms), "topic_data": topics}


async def _append(client: RawClient, **options: int) -> int:
    answer = await client.ask(0, 9, _produce(**options))
    return int(answer.responses[0].partition_responses[0].error_code)


def test_a_stalled_follower_holds_up_acks_all_until_it_ends() -> None:
    async def main(cluster: Cluster) -> None:
        leader = leader_of(cluster, "orders")
        follower = next(b for b in cluster.brokers if b != leader)
        async with await RawClient.to(cluster, leader) as client:
            with cluster.fault.stall_follower(follower) as fault:
                assert cluster.fault.active == [fault]
                assert await _append(client, timeout_ms=100) == 7
                assert await _append(client, acks=1) == 0
                waiting = asyncio.create_task(_append(client))
                await eventually(lambda: _end(cluster, leader) == 3)
                assert _end(cluster, follower) == 0
                assert not waiting.done()
            assert not fault.active
            assert await waiting == 0
            await eventually(lambda: _end(cluster, follower) == 3)

    _run(main)


def test_a_stalled_follower_leaves_the_isr_and_comes_back() -> None:
    async def main(cluster: Cluster) -> None:
        leader = leader_of(cluster, "orders")
        follower = next(b for b in cluster.brokers if b != leader)
        async with await RawClient.to(cluster, leader) as client:
            with cluster.fault.stall_follower(follower):
                assert await _append(client) == 0, "once the ISR is without it"
                assert isr_of(cluster, "orders") == set(cluster.brokers) - {follower}
            await eventually(lambda: isr_of(cluster, "orders") == set(cluster.brokers))

    _run(main, replica_max_lag_ms=300)


def test_min_insync_replicas_of_the_topic_applies() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.controller.create_topic("strict", 1, 3, {"min.insync.replicas": "3"})
        strict = cluster.controller.topics["strict"].partitions[0].leader
        other = next(b for b in cluster.brokers if b not in (strict, leader_of(cluster, "orders")))
        with (
            cluster.fault.shrink_isr("strict", 0, other),
            cluster.fault.shrink_isr("orders", 0, other),
        ):
            async with await RawClient.to(cluster, strict) as client:
                asked = _produce()
                asked["topic_data"][0]["name"] = "strict"
                answer = await client.ask(0, 9, asked)
                assert answer.responses[0].partition_responses[0].error_code == 19
            async with await RawClient.to(cluster, leader_of(cluster, "orders")) as client:
                assert await _append(client) == 0

    _run(main, min_insync_replicas=2)


def test_removed_follower_rejoins_the_isr_when_the_fault_ends() -> None:
    async def main(cluster: Cluster) -> None:
        follower = next(b for b in cluster.brokers if b != leader_of(cluster, "orders"))
        async with await RawClient.to(cluster, leader_of(cluster, "orders")) as client:
            with cluster.fault.shrink_isr("orders", 0, follower):
                for _ in range(3):
                    assert await _append(client) == 0
                await eventually(lambda: _end(cluster, follower) == 3)
                assert follower not in isr_of(cluster, "orders"), "it has all, and is kept out"
            await _append(client)
            await eventually(lambda: follower in isr_of(cluster, "orders"))

    _run(main)


def test_killed_broker_is_silent_and_revived_after_its_time() -> None:
    async def main(cluster: Cluster) -> None:
        leader = leader_of(cluster, "orders")
        async with await RawClient.to(cluster, leader) as client:
            assert await _append(client) == 0
            fault = await cluster.fault.kill(leader, for_s=0.2)
            assert await client.wait_closed() == b""
            assert leader_of(cluster, "orders") != leader
            assert leader not in isr_of(cluster, "orders")
            with pytest.raises(ClusterError, match="dead already"):
                await cluster.fault.kill(leader)
            with pytest.raises(ClusterError, match="dead already"):
                cluster.fault.pause(leader)
        async with await RawClient.to(cluster, leader_of(cluster, "orders")) as client:
            assert await _append(client) == 0
        await eventually(lambda: not fault.active)
        await eventually(lambda: leader in isr_of(cluster, "orders") and _end(cluster, leader) == 2)

    _run(main)


def test_revive_ends_the_kill_at_once() -> None:
    async def main(cluster: Cluster) -> None:
        fault = await cluster.fault.kill(1, for_s=1_000)
        await cluster.fault.revive(1)
        assert not fault.active
        assert cluster.brokers[1].alive
        with pytest.raises(ClusterError, match="broker 1 lives"):
            await cluster.fault.revive(1)

    _run(main)


def test_paused_broker_keeps_connections_and_responds_afterwards() -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as client:
            with cluster.fault.pause(1):
                waiting = asyncio.create_task(client.ask(18, 0))
                async with await RawClient.to(cluster, 2) as other:
                    await other.ask(18, 0)
                assert not waiting.done()
            assert (await waiting).error_code == 0

    _run(main)


def test_a_cut_link_stops_one_follower_alone() -> None:
    async def main(cluster: Cluster) -> None:
        leader = leader_of(cluster, "orders")
        cut, other = (b for b in cluster.brokers if b != leader)
        async with await RawClient.to(cluster, leader) as client:
            with cluster.fault.cut_link(cut, leader):
                assert await _append(client, acks=1) == 0
                await eventually(lambda: _end(cluster, other) == 1)
                assert _end(cluster, cut) == 0
            await eventually(lambda: _end(cluster, cut) == 1)

    _run(main)


def test_slow_follower_delays_its_fetches() -> None:
    async def main(cluster: Cluster) -> None:
        leader = leader_of(cluster, "orders")
        follower = next(b for b in cluster.brokers if b != leader)
        loop = asyncio.get_running_loop()
        async with await RawClient.to(cluster, leader) as client:
            with cluster.fault.slow_follower(follower, lag_ms=100):
                began_s = loop.time()
                assert await _append(client) == 0
                assert loop.time() - began_s > 0.09  # its times are rounded

    _run(main)


def test_lost_responses_are_counted_and_their_requests_executed() -> None:
    async def main(cluster: Cluster) -> None:
        leader = leader_of(cluster, "orders")
        fault = cluster.fault.lose_responses(leader, count=1, api="produce")
        async with await RawClient.to(cluster, leader) as client:
            await client.ask(18, 0)
            assert fault.uses == 0, "another API's answer is not lost"
            client.send(request_frame(0, 9, 1, _produce()))
            assert await client.wait_closed() == b""
        assert (fault.uses, fault.active) == (1, False)
        async with await RawClient.to(cluster, leader) as client:
            assert await _append(client) == 0
        assert _end(cluster, leader) == 2

    _run(main)


def test_a_refused_produce_is_not_appended_and_the_next_one_is() -> None:
    async def main(cluster: Cluster) -> None:
        leader = leader_of(cluster, "orders")
        fault = cluster.fault.refuse_produces(leader, count=1)
        async with await RawClient.to(cluster, leader) as client:
            assert await _append(client) == ErrorCode.NOT_ENOUGH_REPLICAS
            assert (fault.uses, fault.active) == (1, False)
            assert await _append(client) == 0
        assert _end(cluster, leader) == 1

    _run(main)


def test_response_lost_without_a_cut_leaves_the_connection() -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as client:
            with cluster.fault.lose_responses(1, count=2, cut=False):
                for number in (1, 2):
                    client.send(request_frame(18, 0, number))
                client.send(request_frame(18, 0, 3))
                assert int.from_bytes((await client.receive())[:4], "big") == 3

    _run(main)


@pytest.mark.parametrize("cut", [True, False])
def test_second_request_is_lost_and_not_executed(cut: bool) -> None:
    async def main(cluster: Cluster) -> None:
        leader = leader_of(cluster, "orders")
        lost = cluster.fault.lose_requests(api="Produce", skip=1, count=1, cut=cut)
        async with await RawClient.to(cluster, leader) as client:
            assert await _append(client) == 0
            client.send(request_frame(0, 9, 2, _produce()))
            if cut:
                assert await client.wait_closed() == b""
            else:
                client.send(request_frame(18, 0, 3))
                assert int.from_bytes((await client.receive())[:4], "big") == 3
        assert (lost.uses, lost.active) == (1, False)
        assert _end(cluster, leader) == 1

    _run(main)


def test_responses_are_delayed_and_duplicated() -> None:
    async def main(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        async with await RawClient.to(cluster) as client:
            with (
                cluster.fault.delay_responses(1, by_ms=100, count=1),
                cluster.fault.duplicate_responses(1, count=1, api="api_versions"),
            ):
                began_s = loop.time()
                client.send(request_frame(18, 0, 1))
                first = await client.receive()
                assert loop.time() - began_s > 0.09  # its times are rounded
                assert await client.receive() == first
                await client.ask(18, 0)

    _run(main)


def test_delayed_responses_use_a_count_once() -> None:
    async def main(cluster: Cluster) -> None:
        async with await RawClient.to(cluster) as one, await RawClient.to(cluster) as two:
            with cluster.fault.delay_responses(1, by_ms=50) as delay:
                lost = cluster.fault.lose_responses(1, count=1, cut=False)
                for client in (one, two):
                    client.send(request_frame(18, 0, 1))
                await eventually(lambda: delay.uses == 2)
                came = [asyncio.create_task(client.receive()) for client in (one, two)]
                done, waiting = await asyncio.wait(came, return_when=asyncio.FIRST_COMPLETED)
                await eventually(lambda: not lost.active)
                assert (len(done), lost.uses) == (1, 1)
                for task in waiting:
                    task.cancel()

    _run(main)


def test_connections_are_cut_of_one_broker_or_of_all() -> None:
    async def main(cluster: Cluster) -> None:
        clients = [await RawClient.to(cluster, broker) for broker in (1, 1, 2)]
        for client in clients:
            await client.ask(18, 0)
        assert cluster.fault.cut_connections(1) == 2
        await clients[0].wait_closed()
        await clients[2].ask(18, 0)
        assert cluster.fault.cut_connections() == 1
        assert await clients[2].wait_closed() == b""
        for client in clients:
            client.writer.transport.abort()

    _run(main)


def test_faults_end_once_by_time_or_end_all_and_are_listed() -> None:
    async def main(cluster: Cluster) -> None:
        faults = cluster.fault
        timed = faults.stall_follower(1, for_s=0.02)
        endless = [faults.pause(3), faults.cut_link(1, 2), faults.delay_responses(2, by_ms=5)]
        assert faults.active == [timed, *endless]
        await eventually(lambda: not timed.active)
        assert timed.as_dict()["settings"] == {"broker": 1}
        ended_s = timed.ended_s
        timed.end()
        assert timed.ended_s == ended_s
        faults.end_all()
        assert faults.active == []
        assert [fault["kind"] for fault in map(ActiveFault.as_dict, faults.recent)] == [
            "stall_follower",
            "pause",
            "cut_link",
            "delay_responses",
        ]
        assert len({fault.number for fault in faults.recent}) == 4

    _run(main)


def test_stopped_cluster_drops_its_faults() -> None:
    async def main() -> None:
        async with Cluster(ClusterConfig(brokers=2)) as cluster:
            fault = await cluster.fault.kill(2, for_s=0.05)
        await asyncio.sleep(0.1)
        assert not fault.active
        assert not cluster.brokers[2].alive, "it is not revived in a cluster that ended"

    uvloop.run(main())


@pytest.mark.parametrize(
    ("kind", "arguments", "right"),
    [
        ("stall_follower", {"broker": 4}, "there are 1, 2, 3"),
        ("stall_follower", {"broker": "1"}, "there are 1, 2, 3"),
        ("stall_follower", {"broker": None}, "there are 1, 2, 3"),
        ("stall_follower", {"broker": [1]}, "there are 1, 2, 3"),
        ("stall_follower", {"broker": 1, "for_s": 0}, "seconds above 0"),
        ("stall_follower", {"broker": 1, "for_s": -1}, "seconds above 0"),
        ("stall_follower", {"broker": 1, "for_s": "10"}, "seconds above 0"),
        ("stall_follower", {"broker": 1, "for_s": float("inf")}, "seconds above 0"),
        ("stall_follower", {"broker": 1, "for_s": 1e308}, "up to 1,000,000,000 s"),
        ("stall_follower", {"broker": 1, "for_s": float("nan")}, "seconds above 0"),
        ("stall_follower", {}, "it takes broker, for_s"),
        ("slow_follower", {"broker": 1, "lag_ms": -1}, "milliseconds, 0 or more"),
        ("slow_follower", {"broker": 1, "lag_ms": "5"}, "milliseconds, 0 or more"),
        ("delay_responses", {"broker": 1, "by_ms": float("nan")}, "milliseconds, 0 or more"),
        ("delay_responses", {"broker": 1, "by_ms": 1, "count": 0}, "from 1 on"),
        ("lose_responses", {"broker": 1, "count": -1}, "from 1 on"),
        ("lose_responses", {"broker": 1, "count": 1.5}, "from 1 on"),
        ("lose_responses", {"broker": 1, "api": "Produces"}, "the nearest are Produce,"),
        ("duplicate_responses", {"broker": 1, "api": 0}, "the name of an API"),
        ("return_error", {"api": "Produce"}, "error or errors: one of them"),
        ("return_error", {"error": "NOT_LEADER"}, "the nearest are NOT_LEADER_OR_FOLLOWER,"),
        ("return_error", {"error": "NONE"}, "is not an error"),
        (
            "return_error",
            {"api": "Heartbeat", "error": "NOT_COORDINATOR", "topic": "orders"},
            "topic='orders': Heartbeat names no topic; it can be group_id",
        ),
        (
            "return_error",
            {"api": "ApiVersions", "error": "UNSUPPORTED_VERSION", "group_id": "g"},
            "ApiVersions names no group id; leave it out",
        ),
        ("load_coordinator", {"api": "Produce"}, "Produce isn't sent to coordinators"),
        ("load_coordinator", {"api": "Heartbeat"}, "Heartbeat gets no error of a coordinator"),
        ("throttle", {"api": "SaslHandshake", "throttle_ms": 5}, "have no throttle time"),
        ("throttle", {"throttle_ms": 1.5}, "a whole number of milliseconds from 1 to"),
        ("truncate_responses", {"keep_bytes": -1}, "a whole number from 0 on"),
        ("slow_responses", {"bytes_per_s": 0}, "a whole number from 1 on"),
        ("jump_clock", {"broker": 1, "jump_ms": 0}, "forward, or back below 0"),
        ("jump_clock", {"broker": 1, "jump_ms": 10**23}, "50 years at most"),
        ("freeze_metadata", {"broker": 7}, "there are 1, 2, 3"),
        ("kill", {"broker": 1, "for_s": -5}, "seconds above 0"),
        ("kill", {"broker": 9}, "there are 1, 2, 3"),
        ("cut_link", {"a": 1, "b": 1}, "the same one"),
        ("cut_link", {"a": 1, "b": 7}, "there are 1, 2, 3"),
        ("cut_connections", {"broker": 7}, "there are 1, 2, 3"),
        ("lose_responses", {"broker": 1, "cut": "no"}, "true or false"),
        ("slow_follower", {"broker": 1, "lag_ms": 10**400}, "milliseconds, 0 or more"),
        ("stall_follower", {"broker": 1, "for_s": 10**400}, "seconds above 0"),
        ("shrink_isr", {"topic": ["orders"], "partition": 0, "broker": 1}, "name of a topic"),
        ("shrink_isr", {"topic": "none", "partition": 0, "broker": 1}, "topics are orders"),
        ("shrink_isr", {"topic": "orders", "partition": 5, "broker": 1}, "no partition orders-5"),
        ("shrink_isr", {"topic": "orders", "partition": "0", "broker": 1}, "number of a partition"),
        ("pause", {"broker": 1, "nonsense": 2}, "it takes broker, for_s"),
        ("explode", {"broker": 1}, "there are stall_follower"),
        (["kill"], {"broker": 1}, "there are stall_follower"),
    ],
)
def test_invalid_fault_is_refused_with_a_hint_and_without_effect(
    kind: object, arguments: dict[str, Any], right: str
) -> None:
    async def main(cluster: Cluster) -> None:
        with pytest.raises(ClusterError, match=right):
            await begin_fault(cluster.fault, {"kind": kind, **arguments})
        assert cluster.fault.active == []
        assert all(broker.alive for broker in cluster.brokers.values())

    _run(main)


def test_leader_is_not_removed_from_its_isr() -> None:
    async def main(cluster: Cluster) -> None:
        with pytest.raises(ClusterError, match="leads"):
            cluster.fault.shrink_isr("orders", 0, leader_of(cluster, "orders"))
        assert len(isr_of(cluster, "orders")) == 3

    _run(main)


def test_all_kinds_are_begun_by_name() -> None:
    asked: dict[str, dict[str, Any]] = {
        "slow_follower": {"lag_ms": 1},
        "delay_responses": {"by_ms": 1},
        "cut_link": {"a": 1, "b": 2},
        "shrink_isr": {"topic": "orders", "partition": 0},
        "slow_responses": {"bytes_per_s": 1_000},
        "return_error": {"error": "NOT_COORDINATOR"},
        "throttle": {"throttle_ms": 1},
        "jump_clock": {"jump_ms": -1},
    }

    async def main(cluster: Cluster) -> None:
        follower = next(b for b in cluster.brokers if b != leader_of(cluster, "orders"))
        for kind in KINDS:
            arguments = dict(asked.get(kind, {}))
            if kind != "cut_link":
                arguments["broker"] = follower
            told = await begin_fault(cluster.fault, {"kind": kind, **arguments})
            assert told["kind"] == kind
            cluster.fault.end_all()
            await eventually(lambda: cluster.brokers[follower].alive)

    _run(main)


def test_broker_with_a_taken_port_stays_dead_until_it_is_free() -> None:
    async def main(cluster: Cluster) -> None:
        broker = cluster.brokers[2]
        await cluster.fault.kill(2)
        taken = await asyncio.start_server(lambda *_: None, broker.host, broker.port)
        async with taken:
            with pytest.raises(ClusterError, match="broker 2 can't listen"):
                await cluster.fault.revive(2)
            assert not broker.alive
            assert 2 not in cluster.controller.live, "nobody waits for it"
            assert all(state.leader != 2 for _, state in cluster.controller.partitions())
            with capture_logs() as logs:
                cluster.revive_soon(2)
                await eventually(lambda: any(log["event"] == "not_revived" for log in logs))
        await cluster.fault.revive(2)
        assert 2 in cluster.controller.live

    _run(main)


def test_second_concurrent_revive_is_refused(tmp_path: Path) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.kill(2)
        first = asyncio.create_task(cluster.revive(2))
        await asyncio.sleep(0)
        with pytest.raises(ClusterError, match="just being started"):
            await cluster.revive(2)
        await first
        assert cluster.brokers[2].alive

    _run(main, data_dir=tmp_path)
