"""The servers that the documents have recipes for, each with an example as its application."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.processes.examples.conftest import EXAMPLES, ROOT, free_port, wait_until_ready

_UVICORN = (
    *("-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", "{port}", "--log-level", "warning"),
)
_HYPERCORN = (
    *("-m", "hypercorn", "--workers", "0", "--bind", "127.0.0.1:{port}", "--log-level", "warning"),
)
_GUNICORN = (
    *("-m", "gunicorn", "--bind", "127.0.0.1:{port}", "--log-level", "warning"),
    *("--config", str(EXAMPLES / "gunicorn_shutdown.py"), "--chdir", str(EXAMPLES)),
    *("--worker-class", "gthread"),
)
_GRANIAN = (
    *("-m", "granian", "--port", "{port}", "--workers", "1", "--log-level", "error"),
    *("--working-dir", str(EXAMPLES)),
)
_SANIC = (
    *("-m", "sanic", "long_poll_sanic:app", "--host", "127.0.0.1", "--port", "{port}"),
    *("--no-motd", "--no-access-logs"),
)


@dataclass(frozen=True)
class Server:
    """A command line, and the paths of requests to its application.

    Args:
        command: of this Python, with ``{port}`` in it.
        poll: waits for 30 s or more, unless a record comes.
        waiting: tells how many polls wait, as a number or among metrics.
    """

    command: tuple[str, ...]
    poll: str = "/poll"
    waiting: str = "/waiting"


def _topics(*command: str) -> Server:
    return Server(command, "/topics/news?wait=50", "/metrics")


SERVERS = {
    "uvicorn with Starlette": _topics(*_UVICORN, "long_poll_starlette:app"),
    "uvicorn with FastAPI": _topics(*_UVICORN, "long_poll_fastapi:app"),
    "uvicorn with Litestar": Server((*_UVICORN, "long_poll_litestar:app")),
    "hypercorn": _topics(*_HYPERCORN, "long_poll_starlette:app"),
    "hypercorn on uvloop": _topics(
        *_HYPERCORN, "--worker-class", "uvloop", "long_poll_fastapi:app"
    ),
    "granian": _topics(*_GRANIAN, "--interface", "asgi", "long_poll_starlette:app"),
    "aiohttp": Server((str(EXAMPLES / "long_poll_aiohttp.py"), "{port}")),
    # With a worker process of its own Sanic hangs, with any application, if SIGTERM comes in its
    # first second.
    "sanic": Server((*_SANIC, "--single-process")),
    "tornado": Server((str(EXAMPLES / "long_poll_tornado.py"), "{port}")),
    "twisted": Server((str(EXAMPLES / "long_poll_twisted.py"), "{port}")),
    "gunicorn that forks": Server(
        (*_GUNICORN, "--preload", "--workers", "2", "--threads", "20", "prefork_gunicorn:app"),
        "/wait?seconds=20",
        "/worker",
    ),
    "gunicorn with Flask": Server((*_GUNICORN, "--threads", "100", "long_poll_flask:app")),
    # The later option counts.
    "gunicorn with gevent": Server((*_GUNICORN, "--worker-class", "gevent", "long_poll_flask:app")),
    "the standard library's threads": _topics(str(EXAMPLES / "threaded_http.py"), "{port}"),
}
ENDED = {0, -signal.SIGTERM}  # uvicorn raises the signal once more when it is done


@contextmanager
def running(
    server: Server, errors: Path | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """Start a server, and give its process and a client.

    Args:
        server: which.
        errors: a file for what it writes to standard error; by default to that of the tests.
    """
    port = free_port()
    with open(errors or os.devnull, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, *(part.format(port=port) for part in server.command)],
            cwd=EXAMPLES,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=file if errors else None,
        )
    # No connection is kept: gunicorn gives idle ones two seconds.
    limits = httpx.Limits(max_keepalive_connections=0)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, limits=limits)
    try:
        with client:
            wait_until_ready(client, server.waiting, process)
            yield process, client
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(60)


class ParkedFetch:
    """The number of polls that wait in a server; of several workers, as each was seen last."""

    def __init__(self, client: httpx.Client, server: Server) -> None:
        self._client = client
        self._path = server.waiting
        self._seen: dict[int, int] = {}

    def count(self) -> int:
        answer = self._client.get(self._path)
        if self._path == "/waiting":
            return int(answer.json())
        if self._path == "/worker":
            self._seen[answer.json()["worker"]] = answer.json()["waiting"]
            return sum(self._seen.values())
        (line,) = (
            one
            for one in answer.text.splitlines()
            if one.startswith("purgatory_pending_operations{")
        )
        return round(float(line.split()[-1]))
