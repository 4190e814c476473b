"""The live feed of a cluster: it has the present state, and viewers leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from purgatory.cluster.control import live_feed, live_purgatory
from purgatory.cluster.control.control import Control
from purgatory.core.operation import DelayedOperation
from tests.wire.cluster.traced_cluster import ToldCluster, comparable, follow, until

_TOKEN = {"Authorization": "Bearer right"}


class Never(DelayedOperation):
    """Waits until it expires."""

    def try_complete(self) -> bool:
        return False


class Viewed:
    """A cluster with its control, and a client of that."""

    def __init__(self, cluster: Cluster, control: Control, session: ClientSession) -> None:
        self.cluster = cluster
        self.control = control
        self.session = session
        self.feed = control.live.feed

    async def get(self, path: str, **headers: str) -> Any:
        async with self.session.get(f"{self.control.url}/view/{path}", headers=headers) as answer:
            return answer.status, await answer.json()

    async def state(self) -> dict[str, Any]:
        status, state = await self.get("state")
        assert status == 200
        return state  # type: ignore[no-any-return]

    @asynccontextmanager
    async def viewer(self) -> AsyncIterator[ToldCluster]:
        told = ToldCluster()
        async with self.session.get(f"{self.control.url}/view/live") as answer:
            assert answer.status == 200
            assert answer.content_type == "text/event-stream"
            following = asyncio.create_task(follow(answer, told))
            try:
                await until(lambda: told.states or following.done())
                yield told
                if following.done():
                    await following
            finally:
                following.cancel()
                await asyncio.wait([following])

    def park(self, count: int, delay_ms: int = 600_000, broker: int = 1) -> list[Never]:
        purgatory = self.cluster.brokers[broker].purgatories[0].core
        operations = [Never(delay_ms + number) for number in range(count)]
        for operation in operations:
            purgatory.try_complete_else_watch(operation, ["here"])
        return operations


def _run(main: Callable[[Viewed], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        config = ClusterConfig(brokers=3, topics=[TopicSpec("orders", 2, 3)])
        async with (
            Cluster(config) as cluster,
            ClientSession(timeout=ClientTimeout(total=60)) as session,
        ):
            control = Control(cluster, **options)
            await control.start()
            try:
                await main(Viewed(cluster, control, session))
                await until(lambda: control.live.feed._model is None)
                observed = [
                    one.core.on_completed for b in cluster.brokers.values() for one in b.purgatories
                ]
                assert observed == [None] * len(observed)
            finally:
                await control.stop()

    asyncio.run(run())


async def _same_in_the_end(viewed: Viewed, told: ToldCluster) -> None:
    """Followers fetch on and on: two looks are compared that nothing came between."""
    async with asyncio.timeout(30):
        while True:
            state = await viewed.state()
            await until(lambda at_us=state["at_us"]: told.until_us >= at_us)  # type: ignore[misc]
            if told.until_us == state["at_us"]:
                assert told.whole() == comparable(state)
                return


async def _produce(viewed: Viewed, count: int, **options: Any) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=viewed.cluster.bootstrap_servers, acks="all", **options
    )
    await producer.start()
    try:
        if "transactional_id" in options:
            await producer.begin_transaction()
        for number in range(count):
            await producer.send_and_wait("orders", b"%d" % number, partition=number % 2)
        if "transactional_id" in options:
            await producer.commit_transaction()
    finally:
        await producer.stop()


def test_state_with_changes_equals_the_next_state() -> None:
    async def main(viewed: Viewed) -> None:
        async with viewed.viewer() as told:
            consumer = AIOKafkaConsumer(
                "orders",
                bootstrap_servers=viewed.cluster.bootstrap_servers,
                group_id="<img src=x onerror=alert(1)>",
                client_id="<script>alert(2)</script>",
                auto_offset_reset="earliest",
            )
            await consumer.start()
            await _produce(viewed, 20)
            await _produce(viewed, 20, transactional_id="t-1")
            await consumer.getone()
            name = "<img src=x onerror=alert(1)>"
            await until(lambda: told.groups.get(name, {}).get("state") == "Stable")
            assert any("<script>" in member for member in told.groups[name]["members"])
            await _same_in_the_end(viewed, told)
            produces = [one for one in told.completed if one["purgatory"] == "Produce"]
            assert len(produces) >= 20
            assert {one["outcome"] for one in produces} == {"completed"}
            assert {one["kind"] for one in produces} == {"producer"}
            assert {tuple(one["keys"]) for one in produces} >= {("orders-0",), ("orders-1",)}
            # An operation between two snapshots is reported as parked before its completion.
            assert {one["id"] for one in produces} <= {row[0] for row in told.parked}
            await consumer.stop()
            await until(lambda: told.groups[name]["state"] == "Empty")
            await _same_in_the_end(viewed, told)
            assert told.states == 1

    _run(main)


def test_produce_is_traced_until_its_response() -> None:
    async def main(viewed: Viewed) -> None:
        await _produce(viewed, 1)
        assert (await viewed.get("request-traces"))[1] == {"request_traces": []}  # nobody looked
        async with viewed.viewer():
            await _produce(viewed, 4, client_id="<b>me</b>")
            journeys = (await viewed.get("request-traces?limit=3"))[1]["request_traces"]
            assert [one["offset"] for one in journeys] == [1, 2, 0]
            for journey in journeys:
                assert journey["title"].startswith("<b>me</b>, record ")
                assert (journey["outcome"], journey["error"]) == ("ok", None)
                names = [one["name"] for one in journey["stages"]]
                assert names[:3] == ["arrived", "served", "appended"]
                assert names.count("copied") >= 1
                assert {"committed", "completed", "answered"} <= {*names}
                times = [one["at_us"] for one in journey["stages"]]
                assert times == sorted(times)
                leader = journey["stages"][0]["broker"]
                copied = {one["broker"] for one in journey["stages"] if one["name"] == "copied"}
                assert copied <= {1, 2, 3} - {leader}
            place = f"topic=orders&partition={journeys[0]['partition']}&offset=1"
            assert (await viewed.get(f"request-trace?{place}"))[1] == journeys[0]
            status, said = await viewed.get("request-trace?topic=orders&partition=0&offset=99")
            assert (status, said["error"][:40]) == (404, "no produce that brought record 99 of ord")
            assert (await viewed.get("request-trace?topic=orders&partition=x&offset=1"))[0] == 400
        await until(lambda: viewed.cluster.request_traces is None)

    _run(main)


def test_feed_agrees_with_the_state_of_the_control() -> None:
    async def main(viewed: Viewed) -> None:
        await _produce(viewed, 10)
        viewed.park(30)
        async with asyncio.timeout(30):
            while True:
                told = await viewed.state()
                async with viewed.session.get(f"{viewed.control.url}/state") as answer:
                    state = await answer.json()
                completed = [one["purgatories"] for one in told["brokers"]]
                known = [
                    [{k: v for k, v in one.items() if k != "oldest_ms"} for one in b["purgatories"]]
                    for b in state["brokers"]
                ]
                if completed == known:  # nothing came between the two
                    break
        keys = ("partition", "leader", "leader_epoch", "high_watermark", "log_end_offsets")
        for mine, other in zip(told["topics"], state["topics"], strict=True):
            assert (mine["name"], mine["internal"]) == (other["name"], other["internal"])
            for one, two in zip(mine["partitions"], other["partitions"], strict=True):
                assert [one[key] for key in keys] == [two[key] for key in keys]
        by_purgatory = [row[2] for row in told["operations"]]
        assert by_purgatory.count("Produce") == 30
        assert told["pending"] == told["shown"] == len(told["operations"])

    _run(main)


def test_marks_are_in_the_buckets_of_the_wheel() -> None:
    async def main(viewed: Viewed) -> None:
        viewed.park(500, delay_ms=100_000)
        async with viewed.viewer() as told:
            core = viewed.cluster.brokers[1].purgatories[0].core
            produces = [row for row in told.operations.values() if row[2] == "Produce"]
            assert len(produces) == 500
            place_of: dict[int, tuple[int, int]] = {}
            for level in core.timer.snapshot(id)["levels"]:  # type: ignore[attr-defined]
                for number, bucket in enumerate(level["buckets"]):
                    assert all(task not in place_of for task in bucket["tasks"])
                    place_of |= dict.fromkeys(bucket["tasks"], (level["level"], number))
            assert len(place_of) == 500
            ticks = {1: 1, 2: 20, 3: 400, 4: 8_000}
            for row in produces:
                assert row[8] == row[6] // ticks[row[7]] % 20
            # Others fall, and expire, each once: so few that one batch may tell of all of them.
            few = live_purgatory.MAX_SHORT_LIVED // 2
            viewed.park(few, delay_ms=300)
            await until(lambda: len(_completed_produces(told)) >= few)
            await _same_in_the_end(viewed, told)
            completed = _completed_produces(told)
            assert list(completed.values()) == ["expired"] * few
            left = {row[0] for row in told.operations.values() if row[2] == "Produce"}
            assert left == {row[0] for row in produces}

    _run(main)


def _completed_produces(told: ToldCluster) -> dict[int, str]:
    """The outcomes that were told, by operation; each is told once."""
    completed = [one for one in told.completed if one["purgatory"] == "Produce"]
    outcomes = {one["id"]: one["outcome"] for one in completed}
    assert len(outcomes) == len(completed)
    return outcomes


def test_feed_reports_a_sample_of_too_many_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_purgatory, "MAX_REPORTED", 100)
    monkeypatch.setattr("purgatory.cluster.control.live_purgatory.MAX_SHORT_LIVED", 10)

    async def main(viewed: Viewed) -> None:
        operations = viewed.park(5_000)
        async with viewed.viewer() as told:
            assert told.state["shown"] <= 110
            assert told.state["pending"] >= 5_000
            assert len(told.operations) == told.state["shown"]
            for operation in operations[:4_950]:
                operation.cancel()
            await until(lambda: told.broker(1)["purgatories"][0]["pending"] == 50)
            assert told.broker(1)["purgatories"][0]["outcomes"]["cancelled"] == 4_950
            # And then all of them again.
            await until(lambda: sum(row[2] == "Produce" for row in told.operations.values()) == 50)
            await _same_in_the_end(viewed, told)

    _run(main)


def test_viewers_see_brokers_die_and_topics_come_and_go() -> None:
    async def main(viewed: Viewed) -> None:
        viewed.park(10, broker=2)
        async with viewed.viewer() as told, viewed.viewer() as other:
            controller = viewed.cluster.controller
            await viewed.cluster.fault.begin(live_feed_kill())
            await until(lambda: told.states > 1 and not told.broker(2)["alive"])
            assert "broker 2 is dead" in told.said
            assert told.broker(2)["purgatories"] == []
            assert not [row for row in told.operations.values() if row[1] == 2]
            viewed.cluster.fault.end_all()
            controller.create_topic("more", 3, 2)
            await until(lambda: "more" in {one["name"] for one in told.state["topics"]})
            await until(lambda: told.broker(2)["alive"] and told.broker(2)["purgatories"])
            controller.delete_topic("more")
            await until(lambda: "more" not in {one["name"] for one in told.state["topics"]})
            await until(lambda: "topic more was deleted" in told.said)
            assert [one["active"] for one in told.faults.values()] == [False]
            await _same_in_the_end(viewed, told)
            assert any("ISR" in text for text in told.said)
            await until(lambda: other.until_us >= told.until_us)

    _run(main)


def live_feed_kill() -> Any:
    from purgatory.kafka.faults import Kill

    return Kill(2)


def test_feed_accepts_at_most_fifty_viewers() -> None:
    async def main(viewed: Viewed) -> None:
        answers = []
        for _ in range(live_feed.MAX_VIEWERS):
            answer = await viewed.session.get(f"{viewed.control.url}/view/live")
            assert answer.status == 200
            answers.append(answer)
        status, refused = await viewed.get("live")
        assert (status, refused["error"]) == (503, "50 viewers look already; close a page")
        for answer in answers:
            answer.close()  # as a tab that is closed
        await until(lambda: viewed.feed.viewers == 0)
        assert (await viewed.get("live?"))[0] == 503 if viewed.feed.viewers else True

    _run(main)


def test_slow_viewer_gets_a_new_state_instead_of_a_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_feed, "MAX_PENDING_BYTES", 300_000)

    async def main(viewed: Viewed) -> None:
        port = viewed.control.port
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        small.connect(("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=small, limit=1_000)
        writer.write(b"GET /view/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await until(lambda: viewed.feed.viewers == 1)
        [viewer] = viewed.feed._viewers
        async with viewed.viewer() as other:
            scheduler = 0
            while not viewer.needs_state:  # its socket is full, and its queue has run over
                for operation in viewed.park(500):
                    operation.cancel()
                scheduler += 1
                until_us = other.until_us
                await until(lambda at=until_us: other.until_us > at)  # type: ignore[misc]
                assert viewer._bytes <= 300_000
                assert scheduler < 2_000
            assert other.states == 1
        writer.transport.abort()
        await until(lambda: viewed.feed.viewers == 0)

    _run(main)


def test_cluster_with_viewers_stops_at_once() -> None:
    async def run() -> None:
        async with ClientSession() as session:
            cluster = Cluster(ClusterConfig(brokers=1))
            await cluster.start()
            control = Control(cluster)
            await control.start()
            viewed = Viewed(cluster, control, session)
            async with viewed.viewer() as told:
                async with asyncio.timeout(10):
                    await control.stop()
                    await cluster.stop()
                assert told.states == 1
            assert control.live.feed.viewers == 0
            assert control.live.feed._model is None
            left = [task for task in asyncio.all_tasks() if "LiveFeed" in task.get_name()]
            await asyncio.wait(left) if left else None

    asyncio.run(run())


def test_data_needs_the_token_and_the_page_does_not() -> None:
    async def main(viewed: Viewed) -> None:
        for path in ("about", "state", "live", "faults"):
            assert (await viewed.get(path))[0] == 401
            assert (await viewed.get(path, Authorization="Bearer wrong"))[0] == 401
        assert (await viewed.get("about", **_TOKEN))[1]["mode"] == "live"
        async with viewed.session.get(f"{viewed.control.url}/page/icon.svg") as answer:
            assert answer.status == 200
        evil = {"Origin": "http://evil.example", **_TOKEN}
        assert (await viewed.get("state", **evil))[0] == 403

    _run(main, token="right")


def test_rebound_names_get_no_data_without_a_token() -> None:
    async def main(viewed: Viewed) -> None:
        for path in ("about", "state", "live", "faults"):
            assert (await viewed.get(path, Host="rebound.example"))[0] == 403
            assert (await viewed.get(path, Origin="http://evil.example"))[0] == 403

    _run(main)


def test_offered_faults_can_be_begun() -> None:
    async def main(viewed: Viewed) -> None:
        faults = (await viewed.get("faults"))[1]["faults"]
        [stall] = [one for one in faults if one["text"] == "stall follower 2 for 10 s"]
        for one in faults:
            if one["ask"]["kind"] == "kill":
                continue
            body, headers = json.dumps(one["ask"]), {"Content-Type": "application/json"}
            url = f"{viewed.control.url}/faults"
            async with viewed.session.post(url, data=body, headers=headers) as answer:
                assert answer.status == 200, one
        state = await viewed.state()
        texts = {one["text"] for one in state["faults"] if one["active"]}
        assert stall["text"] in texts
        viewed.cluster.fault.end_all()

    _run(main)


def test_clusters_in_one_process_have_separate_feeds() -> None:
    async def main(viewed: Viewed) -> None:
        async with Cluster(ClusterConfig(brokers=1)) as cluster:
            control = Control(cluster)
            await control.start()
            other = Viewed(cluster, control, viewed.session)
            async with viewed.viewer() as one, other.viewer() as two:
                other.park(3)
                await until(lambda: len(two.operations) == 3)
                assert "here" not in {key for row in one.operations.values() for key in row[4]}
            await control.stop()

    _run(main)


def test_observer_turns_are_bounded() -> None:
    assert live_purgatory.MAX_NEW * 10 == live_purgatory.MAX_REPORTED
