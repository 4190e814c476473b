"""Server-sent events over any number of workers: each event is the new value of a counter.

uvicorn shared_events:app --app-dir docs/examples --workers 4

curl -N localhost:8000/counters/a/events                # prints each new value
curl -X POST localhost:8000/counters/a

A client that connects again sends the last id it has seen (`Last-Event-ID`, as browsers do), and
gets the value at once if it is higher. It is shared_long_poll.py with one more route.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Header, Request
from fastapi.responses import StreamingResponse
from shared_long_poll import app

from purgatory import PurgatoryClosedError

KEEP_ALIVE_S = 15.0


@app.get("/counters/{name}/events")
async def events(
    name: str, request: Request, last_event_id: Annotated[int, Header()] = 0
) -> StreamingResponse:
    async def stream() -> AsyncIterator[str]:
        last = last_event_id
        while True:
            try:
                last = await request.app.state.shared.wait_for_threshold(
                    name, last + 1, KEEP_ALIVE_S
                )
            except TimeoutError:
                yield ": nothing new\n\n"
            except PurgatoryClosedError:
                return
            else:
                yield f"id: {last}\ndata: {last}\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


__all__ = ["app"]
