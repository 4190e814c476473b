"""A counter for each name, with long polls, over any number of workers.

RELAY=unix uvicorn shared_long_poll:app --app-dir docs/examples --workers 4

curl -X POST localhost:8000/counters/a                  # counts, in some worker
curl 'localhost:8000/counters/a?above=1&wait=30'        # waits until it is above 1, in any other

RELAY is a folder for sockets, or the URL of PostgreSQL or Redis. The counters are in SQLite, in the
file that COUNTERS names.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, Request

from purgatory import PurgatoryClosedError, PurgatoryFullError, close_on_signals
from purgatory.shared import PostgresRelay, RedisRelay, Relay, SharedPurgatory, UnixRelay


def make_relay() -> Relay:
    place = os.environ.get("RELAY", "build/relay")
    if place.startswith("postgres"):
        return PostgresRelay(place)
    return RedisRelay(place) if place.startswith("redis") else UnixRelay(place)


def open_store() -> sqlite3.Connection:
    path = os.environ.get("COUNTERS", "build/counters.db")
    store = sqlite3.connect(path, isolation_level=None, timeout=30)
    store.execute("CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, n INTEGER)")
    return store


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One purgatory in each worker, and one relay between them."""
    store = app.state.store = open_store()

    def read(names: list[str]) -> dict[str, int]:
        marks = ", ".join("?" * len(names))
        found = store.execute(f"SELECT name, n FROM counters WHERE name IN ({marks})", names)
        return dict(found.fetchall())

    async with SharedPurgatory("Counters", make_relay(), read, resync=5.0, batch=500) as shared:
        close_on_signals(shared.local)
        app.state.shared = shared
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/counters/{name}")
async def count(name: str, request: Request) -> int:
    sql = "INSERT INTO counters VALUES (?, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING n"
    number: int = request.app.state.store.execute(sql, [name]).fetchone()[0]
    await request.app.state.shared.advance(name, number)  # after the commit
    return number


@app.get("/counters/{name}")
async def poll(
    name: str,
    request: Request,
    above: Annotated[int, Query(ge=0, le=2**53)] = 0,
    wait: Annotated[float, Query(ge=0, le=60)] = 0,
) -> int | None:
    try:
        reached: int = await request.app.state.shared.wait_for_threshold(name, above + 1, wait)
    except (TimeoutError, PurgatoryClosedError):
        return None
    except PurgatoryFullError:
        raise HTTPException(503, "too many wait already") from None
    return reached
