"""A long poll on aiohttp.

    python docs/examples/long_poll_aiohttp.py 8000

    curl 'localhost:8000/poll?offset=0'         # waits for the first record, at most 30 s
    curl -d 'hello' localhost:8000/append

`handler_cancellation=True` is what takes a poll off the purgatory when its client hangs up. At
SIGTERM all polls are answered at once.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import suppress

from aiohttp import web

from purgatory import AsyncPurgatory, PurgatoryClosedError, close_on_signals

log: list[str] = []
PURGATORY = web.AppKey("purgatory", AsyncPurgatory)


async def purgatory(app: web.Application) -> AsyncIterator[None]:
    async with AsyncPurgatory("Fetch", max_pending=50_000) as app[PURGATORY]:
        close_on_signals(app[PURGATORY])
        yield


async def append(request: web.Request) -> web.Response:
    log.append(await request.text())
    request.app[PURGATORY].advance("log", len(log))  # the state first, then the event
    return web.json_response({"offset": len(log) - 1})


async def poll(request: web.Request) -> web.Response:
    offset = int(request.query.get("offset", "0"))
    with suppress(TimeoutError, PurgatoryClosedError):  # a poll that found nothing is answered, too
        await request.app[PURGATORY].wait_for_threshold("log", offset + 1, timeout=30)
    return web.json_response(log[offset:])


async def waiting(request: web.Request) -> web.Response:
    return web.json_response(request.app[PURGATORY].num_delayed)


app = web.Application()
app.cleanup_ctx.append(purgatory)
app.add_routes([web.post("/append", append), web.get("/poll", poll), web.get("/waiting", waiting)])

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), handler_cancellation=True)
