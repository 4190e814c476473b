"""Long polls of the documents in service: bad values, a full purgatory, load, SIGTERM.

No request gets a 500, nothing writes a traceback, and who waits at SIGTERM is answered.
"""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.processes.examples.conftest import EXAMPLES, ROOT
from tests.processes.examples.servers import ENDED, ParkedFetch, Server, running

PARKED, LOAD = 12, 40
TUTORIAL = ROOT / "docs" / "long-poll.md"
ENDS_WITHIN_S = 20.0
"""The documents say a second on a free machine; `test_shutdown` holds them to it."""


class Service(NamedTuple):
    """A program of a document, and its requests.

    Args:
        server: its command line, with the folder of a copy as ``{folder}``.
        source: the program's text.
        limit: the text of its limit of waiting requests, and another one.
        append: the method's path and its query or body.
        bad: paths of reads with values that can't be.
        refusals: the statuses that may answer those.
        at_shutdown: the status of who waits at SIGTERM.
    """

    server: Server
    source: str
    limit: tuple[str, str]
    append: tuple[str, Mapping[str, str] | None, bytes | None]
    bad: tuple[str, ...]
    at_shutdown: int
    metrics: str | None = None


def tutorial() -> str:
    found = re.search(r"^```python\n(.*?)^```$", TUTORIAL.read_text(), re.M | re.S)
    assert found is not None
    return found[1]


_UVICORN = ("-m", "uvicorn", "--app-dir", "{folder}", "--port", "{port}", "--log-level", "warning")
SERVICES = {
    "tutorial": Service(
        Server((*_UVICORN, "service:app"), "/messages?wait=50", "/metrics"),
        tutorial(),
        ("max_pending=50_000", f"max_pending={PARKED}"),
        ("/messages", {"text": "hello"}, None),
        (
            *("/messages?wait=nan", "/messages?wait=-1", "/messages?wait=inf", "/messages?wait=x"),
            *("/messages?offset=-1", "/messages?offset=x", f"/messages?offset={2**70}"),
        ),
        503,
        "/metrics",
    ),
    "FastAPI": Service(
        Server((*_UVICORN, "service:app"), "/topics/news?wait=50", "/metrics"),
        (EXAMPLES / "long_poll_fastapi.py").read_text(),
        ("max_pending=50_000", f"max_pending={PARKED}"),
        ("/topics/news", None, b"hello"),
        tuple(
            f"/topics/news?{query}"
            for query in ("wait=nan", "wait=-1", "offset=-1", f"offset={2**70}", "offset=x")
        ),
        200,
        "/metrics",
    ),
    "Flask": Service(
        Server(
            (
                *("-m", "gunicorn", "--bind", "127.0.0.1:{port}", "--log-level", "warning"),
                *("--config", str(EXAMPLES / "gunicorn_shutdown.py"), "--chdir", "{folder}"),
                *("--worker-class", "gthread", "--threads", "100", "service:app"),
            )
        ),
        (EXAMPLES / "long_poll_flask.py").read_text(),
        ("max_pending=90", f"max_pending={PARKED}"),
        ("/append", None, b"hello"),
        ("/poll?offset=-1", f"/poll?offset={2**70}"),
        200,
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SERVICES)
def test_long_poll_of_a_document_stands_production(name: str, tmp_path: Path) -> None:
    service = SERVICES[name]
    assert service.limit[0] in service.source
    (tmp_path / "service.py").write_text(service.source.replace(*service.limit))
    (tmp_path / "gunicorn_shutdown.py").write_text((EXAMPLES / "gunicorn_shutdown.py").read_text())
    command = tuple(part.replace("{folder}", str(tmp_path)) for part in service.server.command)
    server, errors = replace(service.server, command=command), tmp_path / "errors"
    path, params, body = service.append
    with running(server, errors) as (process, client), ThreadPoolExecutor(LOAD) as pool:
        for bad in service.bad:
            assert client.get(bad).status_code in (400, 422), bad
        waiting = [pool.submit(client.get, server.poll) for _ in range(PARKED)]
        parked = ParkedFetch(client, server)
        _until(lambda: parked.count() == PARKED)
        assert client.get(server.poll).status_code == 503  # there is no room for more
        assert client.post(path, params=params, content=body).status_code in (200, 201)
        assert {one.result(60).status_code for one in waiting} == {200}
        statuses = Counter(pool.map(lambda _: client.get(server.poll).status_code, range(5 * LOAD)))
        assert statuses == {200: 5 * LOAD}  # the record is there
        if service.metrics is not None:
            page = client.get(service.metrics).text
            assert re.search(r'^purgatory_checks_total\{purgatory="Fetch"\} [1-9]', page, re.M)
        later = re.sub(r"\?|$", "?offset=1&", server.poll, count=1)
        waiting = [pool.submit(client.get, later) for _ in range(PARKED)]
        _until(lambda: parked.count() == PARKED)
        start_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in ENDED
        assert time.monotonic() - start_s < ENDS_WITHIN_S
        responses = [one.result(60) for one in waiting]
        assert {one.status_code for one in responses} == {service.at_shutdown}
        if service.at_shutdown == 503:
            assert {one.headers["retry-after"] for one in responses} == {"1"}
    assert "Traceback" not in errors.read_text()


def _until(condition: object, within_s: float = 60.0) -> None:
    assert callable(condition)
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
