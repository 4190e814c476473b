"""The requests of clients over HTTP: listed, streamed, held and answered; and waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientSession

from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from purgatory.cluster.control import request_routes
from purgatory.cluster.control.control import Control
from purgatory.kafka.errors import ErrorCode
from tests.world.security import security_of
from tests.world.wire_client import METADATA, WireClient


class Remote:
    """A test in another language: the control's address, and a client of Kafka."""

    def __init__(self, session: ClientSession, url: str, client: WireClient) -> None:
        self._session = session
        self._url = url
        self.client = client

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self._session.request(method, self._url + path, json=body) as answer:
            return answer.status, json.loads(await answer.text())

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, body: Any = None
    ) -> AsyncIterator[Callable[[], Coroutine[Any, Any, Any]]]:
        async with self._session.request(method, self._url + path, json=body) as answer:

            async def line() -> Any:
                return json.loads(await answer.content.readline())

            yield line

    async def metadata(self) -> int:
        asked = {"topics": [{"name": "orders", "topic_id": None}]}
        answer = await self.client.ask(1, METADATA, asked)
        return int(answer.topics[0].error_code)


def _run(main: Callable[[Remote], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        config = ClusterConfig(brokers=1, topics=[TopicSpec("orders")])
        async with Cluster(config) as cluster, ClientSession() as session:
            control = Control(cluster)
            await control.start()
            client = WireClient(cluster, "test", True, security_of("none"))
            try:
                await main(Remote(session, control.url, client))
            finally:
                client.cut()
                await control.stop()

    asyncio.run(run())


def test_control_lists_and_forgets_requests() -> None:
    async def main(remote: Remote) -> None:
        await remote.metadata()
        status, body = await remote.ask("GET", "/requests?api=metadata&topic=orders&broker=1")
        [seen] = body["requests"]
        assert (status, seen["client_id"], seen["api"]) == (200, "test", "Metadata")
        assert seen["fields"]["topics"][0]["name"] == "orders"
        assert seen["answer"]["topics"][0]["error_code"] == "NONE"
        assert (await remote.ask("GET", "/requests?api=Fetch"))[1] == {"requests": []}
        assert await remote.ask("DELETE", "/requests", {}) == (200, {})
        assert (await remote.ask("GET", "/requests"))[1] == {"requests": []}
        for wrong in ("api=Metdata", "name=x", "broker=one"):
            assert (await remote.ask("GET", f"/requests?{wrong}"))[0] == 400

    _run(main)


def test_control_streams_answered_requests() -> None:
    async def main(remote: Remote) -> None:
        async with remote.stream("GET", "/requests/live?api=Metadata") as line:
            for number in (1, 2):
                await remote.metadata()
                seen = await line()
                assert (seen["number"], seen["answer"]["topics"][0]["name"]) == (number, "orders")

    _run(main)


def test_held_requests_are_answered_from_outside() -> None:
    async def main(remote: Remote) -> None:
        async with remote.stream("POST", "/requests/held", {"api": "Metadata"}) as line:
            for answer, code in (
                ({"error": "LEADER_NOT_AVAILABLE"}, ErrorCode.LEADER_NOT_AVAILABLE),
                (
                    {"error": "LEADER_NOT_AVAILABLE", "delay_s": 0.01},
                    ErrorCode.LEADER_NOT_AVAILABLE,
                ),
                ({}, ErrorCode.NONE),
            ):
                asking = asyncio.create_task(remote.metadata())
                number = (await line())["number"]
                path = f"/requests/{number}"
                for wrong in ({"answer": {"nonsense": 1}}, {"error": "NO"}, {"delay_s": "1"}):
                    assert (await remote.ask("POST", path, wrong))[0] == 400
                assert await remote.ask("POST", path, answer) == (200, {"number": number})
                assert await asking == code
            status, body = await remote.ask("POST", "/requests/1", {})
            assert (status, body) == (400, {"error": "no request 1 is held"})

    _run(main)


def test_end_of_a_stream_lets_held_requests_pass() -> None:
    async def main(remote: Remote) -> None:
        async with remote.stream("POST", "/requests/held", {"hold_s": 60}) as line:
            asking = asyncio.create_task(remote.metadata())
            await line()
        assert await asking == 0
        async with remote.stream("POST", "/requests/held", {"hold_s": 0.01}):
            assert await remote.metadata() == 0

    _run(main)


def test_stream_that_is_not_read_ends() -> None:
    queue: asyncio.Queue[Any] = asyncio.Queue(2)
    for number in range(4):
        request_routes._put(queue, number)  # type: ignore[arg-type]
    assert [queue.get_nowait(), queue.get_nowait()] == [None, None]


def test_control_waits() -> None:
    async def main(remote: Remote) -> None:
        wait = {"kind": "requests", "api": "Metadata", "count": 1}
        waiting = asyncio.create_task(remote.ask("POST", "/wait", wait))
        await remote.metadata()
        assert await waiting == (200, {})
        wait = {"kind": "isr", "topic": "orders", "partition": 0, "brokers": [1]}
        assert await remote.ask("POST", "/wait", wait) == (200, {})
        wait = {"kind": "group_stable", "group_id": "g", "timeout_s": 0}
        status, body = await remote.ask("POST", "/wait", wait)
        assert (status, "there is no group g" in body["error"]) == (408, True)
        for wrong in ({}, {"kind": "isr"}, {"kind": "isr", "time": 1}, {**wait, "timeout_s": "1"}):
            assert (await remote.ask("POST", "/wait", wrong))[0] == 400

    _run(main)
