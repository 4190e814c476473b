"""A long poll on Litestar.

    uvicorn --app-dir docs/examples long_poll_litestar:app

    curl 'localhost:8000/poll?offset=0'         # waits for the first record, at most 30 s
    curl -d 'hello' localhost:8000/append

Litestar does not cancel a handler whose client hangs up: `client_goes` notices it. At SIGTERM all
polls are answered at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from litestar import Litestar, Request, get, post

from purgatory import AsyncPurgatory, PurgatoryClosedError, close_on_signals

log: list[str] = []


@asynccontextmanager
async def lifespan(app: Litestar) -> AsyncIterator[None]:
    async with AsyncPurgatory("Fetch", max_pending=50_000) as purgatory:
        close_on_signals(purgatory)
        app.state.purgatory = purgatory
        yield


@post("/append")
async def append(request: Request[Any, Any, Any]) -> int:
    log.append((await request.body()).decode())
    request.app.state.purgatory.advance("log", len(log))  # the state first, then the event
    return len(log) - 1


@get("/poll")
async def poll(request: Request[Any, Any, Any], offset: int = 0) -> list[str]:
    purgatory: AsyncPurgatory = request.app.state.purgatory
    wait = asyncio.create_task(purgatory.wait_for_threshold("log", offset + 1, timeout=30))
    gone = asyncio.create_task(client_goes(request))
    await asyncio.wait([wait, gone], return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    if not wait.cancel():  # else nobody is there to be answered: off every list at once
        with suppress(TimeoutError, PurgatoryClosedError):  # a poll that found nothing is answered
            wait.result()
    return log[offset:]


async def client_goes(request: Request[Any, Any, Any]) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@get("/waiting")
async def waiting(request: Request[Any, Any, Any]) -> int:
    waiting: int = request.app.state.purgatory.num_delayed
    return waiting


app = Litestar([append, poll, waiting], lifespan=[lifespan])
