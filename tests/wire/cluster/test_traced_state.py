"""The state in the trace of a real cluster, against the cluster's own as it ran."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from purgatory.cluster import Cluster, ClusterConfig, ThreadedCluster, TopicSpec, start_trace
from purgatory.cluster.control.live_feed import ClusterModel, LiveFeed
from purgatory.view.time_travel import TracedRun

QUIET_S = 1.0
"""The time without a change before the states are compared: ten looks of the trace."""


def compared(state: dict[str, Any], alive: set[int]) -> dict[str, Any]:
    """The state that both have: all but addresses, counts that ended with a broker, and places."""
    brokers = [one for one in state["brokers"] if one["id"] in alive]
    return {
        "alive": {one["id"] for one in state["brokers"] if one["alive"]},
        "pending": {
            (broker["id"], one["name"]): one["pending"]
            for broker in brokers
            for one in broker["purgatories"]
            if one["pending"]
        },
        "operations": sorted(
            (row[1], row[2], row[3], tuple(sorted(row[4]))) for row in state["operations"]
        ),
        "topics": {
            (topic["name"], one["partition"]): (
                one["leader"],
                one["leader_epoch"],
                sorted(one["replicas"]),
                sorted(one["isr"]),
                one["high_watermark"],
                one["log_end_offsets"],
            )
            for topic in state["topics"]
            for one in topic["partitions"]
        },
        "groups": {
            one["name"]: (one["broker"], one["state"], one["generation"], sorted(one["members"]))
            for one in state["groups"]
        },
        "transactions": {one["id"]: one["state"] for one in state["transactions"]},
        "faults": {one["number"]: one["active"] for one in state["faults"]},
    }


def test_the_state_of_a_traced_cluster_is_rebuilt(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    trace, writer = start_trace(folder, "state")
    config = ClusterConfig(
        brokers=3, topics=[TopicSpec("t", partitions=2, replication=3), TopicSpec("gone")]
    )
    seen: list[tuple[int, dict[str, Any], set[int]]] = []
    with ThreadedCluster(config, trace=trace) as cluster:

        def remember() -> None:
            time.sleep(QUIET_S)

            async def look() -> tuple[int, dict[str, Any], set[int]]:
                feed = LiveFeed(partial(ClusterModel, cluster.running))
                state = await feed.state()
                alive = {one.broker_id for one in cluster.running.brokers.values() if one.alive}
                return trace.now_us(), state, alive

            seen.append(cluster.call(look))

        servers = cluster.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "acks": "all"})
        for number in range(50):
            producer.produce("t", f"value {number}", partition=number % 2)
        assert producer.flush(30) == 0
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "g"})
        consumer.subscribe(["t"])
        deadline = time.monotonic() + 60
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(0.1)
        sender = Producer({"bootstrap.servers": servers, "transactional.id": "x"})
        sender.init_transactions(30)
        sender.begin_transaction()
        sender.produce("t", "open", partition=0)
        sender.flush(30)
        remember()
        cluster.call(lambda: cluster.running.controller.delete_topic("gone"))
        cluster.fault.stall_follower(2)
        for partition in (0, 1):  # one of them at least broker 2 does not lead
            producer.produce("t", "waits", partition=partition)
        producer.poll(0)
        remember()
        cluster.fault.kill(3)
        remember()
        sender.abort_transaction(30)
        remember()
        consumer.close()
    trace.close()
    writer.finish(trace.duration_ms, {})

    run = TracedRun(folder)
    for at_us, state, alive in seen:
        rebuilt = run.state(at_us)
        assert rebuilt["unknown"] == []
        assert compared(rebuilt, alive) == compared(state, alive)
    states = [state for _, state, _ in seen]
    assert states[0]["transactions"] and states[0]["groups"] and states[1]["faults"]
    assert "gone" in {one["name"] for one in states[0]["topics"]}
    assert "gone" not in {one["name"] for one in states[1]["topics"]}
    assert {len(alive) for _, _, alive in seen} == {2, 3}
    assert any(row[2] == "Produce" for row in seen[1][1]["operations"])


def test_cluster_of_a_program_records_its_state_too(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    trace, writer = start_trace(folder, "own")

    async def run() -> None:
        async with Cluster(ClusterConfig(topics=[TopicSpec("t")]), trace) as cluster:
            cluster.fault.stall_follower(broker=1)
        await cluster.stop()  # has no effect, and writes nothing more

    asyncio.run(run())
    trace.close()
    writer.finish(trace.duration_ms, {})
    traced = TracedRun(folder)
    state = traced.state(traced.end_us)
    assert state["unknown"] == []
    assert [topic["name"] for topic in state["topics"]] == ["t"]
    assert [fault["active"] for fault in state["faults"]] == [True]
