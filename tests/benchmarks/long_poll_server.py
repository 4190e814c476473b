"""The server that ``long_poll`` measures: one topic over HTTP, waited for in one of two ways.

    WAITS=purgatory uvicorn tests.benchmarks.long_poll_server:app

``WAITS=condition`` parks the same requests on an ``asyncio.Condition`` with ``asyncio.wait_for``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from purgatory import AsyncPurgatory

TOPIC = "news"


class Waits(Protocol):
    """A way to park requests."""

    async def wait(self, end: int, timeout_s: float) -> None:
        """Return when the topic has ``end`` records, or raise TimeoutError."""

    async def append(self) -> None:
        """Add a record, and wake who waits for it."""


class InPurgatory:
    """Parks requests in an ``AsyncPurgatory``."""

    def __init__(self) -> None:
        self.purgatory = AsyncPurgatory("Fetch")
        self.end = 0

    async def wait(self, end: int, timeout_s: float) -> None:
        await self.purgatory.wait_for_threshold(TOPIC, end, timeout_s)

    async def append(self) -> None:
        self.end += 1
        self.purgatory.advance(TOPIC, self.end)


class OnCondition:
    """Parks requests on one condition, as one would without a purgatory."""

    def __init__(self) -> None:
        self.condition = asyncio.Condition()
        self.end = 0

    async def wait(self, end: int, timeout_s: float) -> None:
        async def reached() -> None:
            async with self.condition:
                await self.condition.wait_for(lambda: self.end >= end)

        await asyncio.wait_for(reached(), timeout_s)

    async def append(self) -> None:
        self.end += 1
        async with self.condition:
            self.condition.notify_all()


WAYS: dict[str, type[InPurgatory] | type[OnCondition]] = {
    "purgatory": InPurgatory,
    "condition": OnCondition,
}


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    app.state.waits = WAYS[os.environ["WAITS"]]()
    app.state.waiting = 0
    yield


async def read(request: Request) -> Response:
    waits: Waits = request.app.state.waits
    end, timeout_s = int(request.query_params["end"]), float(request.query_params["wait"])
    request.app.state.waiting += 1
    wait = asyncio.create_task(waits.wait(end, timeout_s))
    gone = asyncio.create_task(_client_goes(request))
    try:
        await asyncio.wait([wait, gone], return_when=asyncio.FIRST_COMPLETED)
    finally:
        request.app.state.waiting -= 1
        gone.cancel()
        wait.cancel()
    return Response(b"ok")


async def _client_goes(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def append(request: Request) -> Response:
    await request.app.state.waits.append()
    return Response(b"ok")


async def waiting(request: Request) -> Response:
    return Response(str(request.app.state.waiting).encode())


app = Starlette(
    routes=[
        Route("/read", read),
        Route("/append", append, methods=["POST"]),
        Route("/waiting", waiting),
    ],
    lifespan=lifespan,
)
