"""A long poll over the rows of a table, for `workers_soak`: one purgatory in each worker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg import OperationalError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from purgatory import PurgatoryClosedError, close_on_signals
from purgatory.shared import PostgresRelay, RedisRelay, Relay, SharedPurgatory, UnixRelay

DSN = os.environ["SOAK_DSN"]
RESYNC_S = float(os.environ["SOAK_RESYNC"])
STATEMENT_S = 2.0

_connection: psycopg.AsyncConnection[tuple[object, ...]] | None = None
_reading = asyncio.Lock()


def make_relay() -> Relay:
    place = os.environ["SOAK_RELAY"]
    if place == "postgres":
        return PostgresRelay(DSN, heartbeat=1.0)
    return RedisRelay(place, heartbeat=1.0) if place.startswith("redis") else UnixRelay(place)


async def query(sql: str, *arguments: object) -> list[tuple[object, ...]]:
    """Run one statement; a connection that fails is made anew by the next."""
    global _connection  # noqa: PLW0603 - one for the process
    async with _reading:
        try:
            async with asyncio.timeout(STATEMENT_S):
                if _connection is None:
                    _connection = await psycopg.AsyncConnection.connect(DSN, autocommit=True)
                cursor = await _connection.execute(sql.encode(), arguments)
                return await cursor.fetchall()
        except BaseException:
            if _connection is not None:
                _connection.pgconn.finish()
                _connection = None
            raise


async def read(keys: list[str]) -> dict[str, int]:
    rows = await query("SELECT key, n FROM counters WHERE key = ANY(%s)", keys)
    return {str(key): int(str(number)) for key, number in rows}


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with SharedPurgatory("Counters", make_relay(), read, RESYNC_S) as shared:
        close_on_signals(shared.local)
        app.state.shared = shared
        yield


async def poll(request: Request) -> JSONResponse:
    asked = request.query_params
    shared: SharedPurgatory = request.app.state.shared
    try:
        value = await shared.wait_for_threshold(
            asked["key"], int(asked["above"]) + 1, float(asked["wait"])
        )
    except TimeoutError:
        return JSONResponse({"value": None, "pid": os.getpid()})
    except PurgatoryClosedError:
        return JSONResponse({"value": None, "pid": os.getpid()}, 503)
    return JSONResponse({"value": value, "pid": os.getpid()})


async def advance(request: Request) -> JSONResponse:
    key = request.query_params["key"]
    try:
        [(number,)] = await query(
            "INSERT INTO counters VALUES (%s, 1) ON CONFLICT (key) DO UPDATE "
            "SET n = counters.n + 1 RETURNING n",
            key,
        )
    except (OperationalError, TimeoutError):
        return JSONResponse({}, 503)
    await request.app.state.shared.advance(key, int(str(number)))
    return JSONResponse({"value": number})


async def state(request: Request) -> JSONResponse:
    shared: SharedPurgatory = request.app.state.shared
    return JSONResponse(
        {
            "pid": os.getpid(),
            "state": shared.relay.state.name,
            "reads": shared.reads,
            **shared.relay.counts._asdict(),
        }
    )


app = Starlette(
    routes=[
        Route("/poll", poll),
        Route("/advance", advance, methods=["POST"]),
        Route("/state", state),
    ],
    lifespan=lifespan,
)
