"""Topics over HTTP with long-poll reads: a handler that waits costs no thread.

uvicorn long_poll_starlette:app --app-dir docs/examples

curl -d 'hello' localhost:8000/topics/news              # appends a record
curl 'localhost:8000/topics/news?offset=1&wait=30'      # waits for the next one, at most 30 s
curl localhost:8000/metrics

At SIGTERM all who wait are answered at once, also by hypercorn --workers 0.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import AsyncPurgatory, PurgatoryFullError, close_on_signals, metrics

LONGEST_WAIT_S = 60.0

topics: defaultdict[str, list[str]] = defaultdict(list)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Make the purgatory on the loop that serves, and answer all who wait at SIGTERM."""
    async with AsyncPurgatory("Fetch", max_pending=50_000) as purgatory:
        close_on_signals(purgatory)  # the lifespan ends too late: after the last answer
        app.state.purgatory = purgatory
        metrics.register(purgatory)
        yield
        metrics.unregister(purgatory)


async def append(request: Request) -> Response:
    name = request.path_params["topic"]
    try:
        record = (await request.body()).decode()
    except UnicodeDecodeError:
        return JSONResponse({"error": "a record must be text in UTF-8"}, 400)
    topics[name].append(record)
    end = len(topics[name])
    request.app.state.purgatory.advance(name, end)  # the state first, then the event
    return JSONResponse({"offset": end - 1}, 201)


async def read(request: Request) -> Response:
    name = request.path_params["topic"]
    purgatory: AsyncPurgatory = request.app.state.purgatory
    try:
        offset = max(0, int(request.query_params.get("offset", "0")))
        wait_s = float(request.query_params.get("wait", "0"))
        if not wait_s >= 0:
            raise ValueError(wait_s)  # not a number, or a negative one
    except ValueError:
        return JSONResponse({"error": "offset must be a number, and wait one of seconds"}, 400)
    wait = asyncio.create_task(
        purgatory.wait_for_threshold(name, offset + 1, timeout=min(wait_s, LONGEST_WAIT_S))
    )
    gone = asyncio.create_task(client_goes(request))
    await asyncio.wait([wait, gone], return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    if wait.cancel():  # nobody waits for the answer: off every list at once
        return Response(status_code=499)
    if isinstance(wait.exception(), PurgatoryFullError):
        return JSONResponse({"error": "too many wait already"}, 503)
    # A long poll that ends with nothing, at its timeout or a shutdown, is an answer too.
    records = topics.get(name, [])[offset:]
    return JSONResponse({"records": records, "next": offset + len(records)})


async def client_goes(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def show_metrics(request: Request) -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


app = Starlette(
    routes=[
        Route("/topics/{topic}", append, methods=["POST"]),
        Route("/topics/{topic}", read, methods=["GET"]),
        Route("/metrics", show_metrics),
    ],
    lifespan=lifespan,
)
