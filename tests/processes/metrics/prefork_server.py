"""A pre-forking server, as gunicorn is one: a master that forks workers, and replaces the dead.

    PROMETHEUS_MULTIPROC_DIR=... python prefork_server.py (before|after) WORKERS

``before``: the master makes and registers the purgatory, then forks; ``after``: each worker does.
The master prints a line of JSON for each worker that it starts, and for each whose end it has
noticed. A worker serves HTTP on a port of its own:

* ``/metrics`` what a scrape of any worker answers;
* ``/work?waiting=3&immediate=2`` submits so many operations, and answers with what it counted.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qsl, urlsplit

from prometheus_client import CollectorRegistry, generate_latest, multiprocess

from purgatory import DelayedOperation, DelayedOperationPurgatory, metrics


class Waiting(DelayedOperation):
    """Completes at once, or never."""

    def __init__(self, ready: bool) -> None:
        super().__init__(3_600_000)
        self.ready = ready

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()


def made() -> DelayedOperationPurgatory:
    """Return a purgatory that is reported."""
    purgatory = DelayedOperationPurgatory("Produce", max_pending=100)
    metrics.register(purgatory)
    return purgatory


def scrape() -> bytes:
    """Answer as prometheus-client's documentation has it for this mode."""
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def serve(purgatory: DelayedOperationPurgatory) -> None:
    """Be a worker, until killed."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            body = scrape() if url.path == "/metrics" else self.work(dict(parse_qsl(url.query)))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def work(self, numbers: dict[str, str]) -> bytes:
            for kind, number in numbers.items():
                for _ in range(int(number)):
                    purgatory.try_complete_else_watch(Waiting(kind == "immediate"), ["key"])
            return json.dumps(purgatory.counters.outcomes).encode()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        tell(event="started", pid=os.getpid(), port=server.server_port)
        server.serve_forever()


def tell(**line: object) -> None:
    """Tell the test."""
    os.write(1, json.dumps(line).encode() + b"\n")


def fork(preloaded: DelayedOperationPurgatory | None) -> None:
    """Start a worker."""
    if os.fork() == 0:
        try:
            serve(preloaded or made())
        finally:
            os._exit(1)


def main() -> None:
    preloaded = made() if sys.argv[1] == "before" else None
    for _ in range(int(sys.argv[2])):
        fork(preloaded)
    while True:
        pid, _status = os.wait()
        multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
        tell(event="ended", pid=pid)
        fork(preloaded)


if __name__ == "__main__":
    main()
