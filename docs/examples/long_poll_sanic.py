"""A long poll on Sanic.

    sanic long_poll_sanic:app --workers 1       # in docs/examples

    curl 'localhost:8000/poll?offset=0'         # waits for the first record, at most 30 s
    curl -d 'hello' localhost:8000/append

Sanic sets its signal handlers after `before_server_start`: `close_on_signals` belongs into
`after_server_start`. At SIGTERM all polls are answered at once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sanic import HTTPResponse, Request, Sanic, json

from purgatory import AsyncPurgatory, PurgatoryClosedError, close_on_signals

app: Any = Sanic("long_poll")
log: list[str] = []


@app.before_server_start
async def start(app: Any) -> None:
    app.ctx.purgatory = AsyncPurgatory("Fetch", max_pending=50_000)


@app.after_server_start
async def close_at_signals(app: Any) -> None:
    close_on_signals(app.ctx.purgatory)


@app.after_server_stop
async def stop(app: Any) -> None:
    await app.ctx.purgatory.aclose()


@app.post("/append")
async def append(request: Request) -> HTTPResponse:
    log.append(request.body.decode())
    app.ctx.purgatory.advance("log", len(log))  # the state first, then the event
    return json({"offset": len(log) - 1})


@app.get("/poll")
async def poll(request: Request) -> HTTPResponse:
    offset = int(request.args.get("offset", "0"))
    with suppress(TimeoutError, PurgatoryClosedError):  # a poll that found nothing is answered, too
        await app.ctx.purgatory.wait_for_threshold("log", offset + 1, timeout=30)
    return json(log[offset:])


@app.get("/waiting")
async def waiting(request: Request) -> HTTPResponse:
    return json(app.ctx.purgatory.num_delayed)
