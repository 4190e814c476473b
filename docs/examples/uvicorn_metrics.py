"""Metrics of uvicorn's workers, of which one may be killed. Needs `pip install starlette uvicorn`.

    PROMETHEUS_MULTIPROC_DIR=$(mktemp -d) \\
        uvicorn --workers 4 --app-dir docs/examples uvicorn_metrics:app

    curl 'localhost:8000/wait?seconds=60' &
    curl localhost:8000/metrics             # of all workers that live, from any of them

uvicorn replaces a worker that was killed, and tells nobody: whoever is scraped removes its gauges.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest, multiprocess
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import AsyncPurgatory, metrics


def remove_gauges_of_dead_workers() -> None:
    for path in Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]).glob("gauge_live*_*.db"):
        pid = int(path.stem.rpartition("_")[2])
        try:
            os.kill(pid, 0)  # asks whether it lives
        except ProcessLookupError:
            with suppress(FileNotFoundError):  # another worker was scraped, too
                multiprocess.mark_process_dead(pid)


async def scrape(request: Request) -> Response:
    remove_gauges_of_dead_workers()
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    return Response(generate_latest(registry), media_type="text/plain")


async def wait(request: Request) -> JSONResponse:
    seconds = min(60.0, float(request.query_params["seconds"]))
    with suppress(TimeoutError):
        await request.app.state.waits.wait(["event"], lambda: False, seconds)
    return JSONResponse({"worker": os.getpid()})


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with AsyncPurgatory("Wait") as app.state.waits:
        metrics.register(app.state.waits)
        yield


app = Starlette(routes=[Route("/metrics", scrape), Route("/wait", wait)], lifespan=lifespan)
