"""Topics over HTTP with long-poll reads, on FastAPI.

uvicorn long_poll_fastapi:app --app-dir docs/examples

curl -d 'hello' localhost:8000/topics/news              # appends a record
curl 'localhost:8000/topics/news?offset=1&wait=30'      # waits for the next one, at most 30 s
curl localhost:8000/metrics
curl localhost:8000/debug/purgatory/state               # who waits, for what; without state: a page

At SIGTERM all who wait are answered at once, also by hypercorn --workers 0.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from purgatory import (
    AsyncPurgatory,
    PurgatoryClosedError,
    PurgatoryFullError,
    close_on_signals,
    debug,
    metrics,
)

LONGEST_WAIT_S = 60.0

topics: defaultdict[str, list[str]] = defaultdict(list)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Make the purgatory on the loop that serves, and answer all who wait at SIGTERM."""
    async with AsyncPurgatory("Fetch", max_pending=50_000) as purgatory:
        close_on_signals(purgatory)  # the lifespan ends too late: after the last answer
        app.state.purgatory = purgatory
        metrics.register(purgatory)
        yield
        metrics.unregister(purgatory)


app = FastAPI(lifespan=lifespan)
app.mount("/debug/purgatory", debug.asgi_app())  # in production behind a login


@app.post("/topics/{topic}", status_code=201)
async def append(topic: str, request: Request) -> dict[str, int]:
    try:
        record = (await request.body()).decode()
    except UnicodeDecodeError:
        raise HTTPException(400, "a record must be text in UTF-8") from None
    topics[topic].append(record)
    end = len(topics[topic])
    request.app.state.purgatory.advance(topic, end)  # the state first, then the event
    return {"offset": end - 1}


@app.get("/topics/{topic}")
async def read(
    topic: str,
    request: Request,
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    wait: Annotated[float, Query(ge=0)] = 0,
) -> dict[str, object]:
    purgatory: AsyncPurgatory = request.app.state.purgatory
    waiting = asyncio.create_task(
        purgatory.wait_for_threshold(topic, offset + 1, min(wait, LONGEST_WAIT_S))
    )
    gone = asyncio.create_task(client_goes(request))
    await asyncio.wait([waiting, gone], return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    if not waiting.cancel():  # else nobody is there to be answered: off every list at once
        try:
            waiting.result()
        except (TimeoutError, PurgatoryClosedError):
            pass  # a long poll that ends with nothing, at its timeout or a shutdown, is an answer
        except PurgatoryFullError:
            raise HTTPException(503, "too many wait already") from None
    records = topics.get(topic, [])[offset:]
    return {"records": records, "next": offset + len(records)}


async def client_goes(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@app.get("/metrics")
async def show_metrics() -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
