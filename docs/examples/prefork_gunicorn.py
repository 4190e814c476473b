"""A server whose workers fork, each with a purgatory that lives.

    gunicorn --preload --workers 4 --worker-class gthread --threads 50 \\
        --chdir docs/examples prefork_gunicorn:app

    curl 'localhost:8000/wait?seconds=2'     # waits for a signal, at most so long
    curl -d '' localhost:8000/signal         # wakes who waits in the worker that takes it
    curl localhost:8000/worker

With ``--preload`` the purgatory is made before the fork. Each worker finds it empty, and its reaper
starts with the first operation; nothing has to be done about it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome

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
    path = environ["PATH_INFO"]
    if path == "/wait":
        query = parse_qs(environ["QUERY_STRING"])
        wait_s = min(float(query.get("seconds", ["1"])[0]), LONGEST_WAIT_S)
        operation = NextSignal(round(1_000 * wait_s))
        purgatory.try_complete_else_watch(operation, ["signal"])
        body: dict[str, object] = {"woken": operation.wait() is Outcome.COMPLETED}
    elif path == "/signal":
        NextSignal.count += 1
        body = {"woke": purgatory.check_and_complete("signal")}
    elif path == "/worker":
        reapers = [t.name for t in threading.enumerate() if t.name.startswith("ExpirationReaper")]
        body = {"waiting": purgatory.num_delayed, "reapers": reapers}
    else:
        start_response("404 Not Found", [("Content-Type", "application/json")])
        return [b'{"error": "there are /wait, /signal and /worker"}']
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(body | {"worker": os.getpid()}).encode()]
