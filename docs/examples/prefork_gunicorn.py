"""A server whose workers fork, each with a purgatory that lives.

    gunicorn --preload --workers 4 --worker-class gthread --threads 50 \\
        --chdir docs/examples prefork_gunicorn:app

    curl 'localhost:8000/wait?seconds=2'     # waits for a signal, at most so long
    curl -d '' localhost:8000/signal         # wakes who waits in the worker that takes it
    curl localhost:8000/worker

With ``--preload`` the purgatory is made before the fork. Each worker finds it empty, and its reaper
starts with the first operation; nothing has to be done about it. But a worker waits for its
requests before it ends: with ``--config docs/examples/gunicorn_shutdown.py`` it answers at SIGTERM
those that wait in the purgatory.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    Outcome,
    PurgatoryClosedError,
    PurgatoryFullError,
)

LONGEST_WAIT_S = 20.0

purgatory = DelayedOperationPurgatory("Signal", max_pending=10_000)


class NextSignal(DelayedOperation):
    """Completes with the first signal that comes after it was made."""

    count = 0

    def __init__(self, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self.seen = NextSignal.count

    def try_complete(self) -> bool:
        return NextSignal.count > self.seen and self.force_complete()


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Answer one request, on one of this worker's threads."""
    status, body = answer(environ["PATH_INFO"], parse_qs(environ["QUERY_STRING"]))
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(body | {"worker": os.getpid()}).encode()]


def answer(path: str, query: dict[str, list[str]]) -> tuple[str, dict[str, object]]:
    if path == "/wait":
        return wait(query.get("seconds", ["1"])[0])
    if path == "/signal":
        NextSignal.count += 1
        return "200 OK", {"woke": purgatory.check_and_complete("signal")}
    if path == "/worker":
        reapers = [t.name for t in threading.enumerate() if t.name.startswith("ExpirationReaper")]
        return "200 OK", {"waiting": purgatory.num_delayed, "reapers": reapers}
    return "404 Not Found", {"error": "there are /wait, /signal and /worker"}


def wait(seconds: str) -> tuple[str, dict[str, object]]:
    try:
        operation = NextSignal(round(1_000 * min(float(seconds), LONGEST_WAIT_S)))
    except (ValueError, OverflowError):  # of nan, of -inf
        return "400 Bad Request", {"error": "seconds must be a number"}
    try:
        purgatory.try_complete_else_watch(operation, ["signal"])
    except (PurgatoryClosedError, PurgatoryFullError) as error:
        return "503 Service Unavailable", {"error": str(error)}
    return "200 OK", {"woken": operation.wait() is Outcome.COMPLETED}
