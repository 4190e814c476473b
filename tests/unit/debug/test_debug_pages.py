"""The pages behind real frameworks: mounted in FastAPI and Starlette, and in WSGI as its standard
has it."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from purgatory import debug
from tests.unit.core.probe import Probe
from tests.unit.debug.conftest import Looked

PLACE = "/debug/purgatory"


def get(app: Any, path: str, method: str = "GET") -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request(method, path)

    return asyncio.run(ask())


@pytest.fixture(params=[FastAPI, Starlette])
def app(request: pytest.FixtureRequest, looked: Looked) -> Any:
    made = request.param()
    made.mount(PLACE, debug.asgi_app([looked.purgatory]))
    return made


def test_the_state_is_served_as_json(app: Any, looked: Looked) -> None:
    looked.purgatory.try_complete_else_watch(Probe(), ["a"])
    answer = get(app, f"{PLACE}/state")
    assert answer.headers["content-type"] == "application/json"
    [one] = answer.json()["purgatories"]
    assert (one["name"], one["pending"]) == ("Fetch", 1)
    assert one["past"]["per_s"]["1m"]["expired"] == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [("", "text/html"), ("page.js", "text/javascript"), ("page.css", "text/css")],
)
def test_the_page_and_its_parts_are_there(app: Any, name: str, kind: str) -> None:
    answer = get(app, f"{PLACE}/{name}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert get(app, f"{PLACE}/{name}", "HEAD").content == b""


@pytest.mark.parametrize("name", ["nothing", "../secret", "page.html", "state/x", "%2e%2e/x"])
def test_other_paths_are_not_found(app: Any, name: str) -> None:
    assert get(app, f"{PLACE}/{name}").status_code == 404


def test_the_page_refuses_writes(app: Any) -> None:
    answer = get(app, f"{PLACE}/state", "POST")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_the_page_is_an_application_by_itself(looked: Looked) -> None:
    app = debug.asgi_app([looked.purgatory])
    assert get(app, "/").status_code == 200
    assert get(app, "/state").json()["purgatories"][0]["name"] == "Fetch"


def test_served_by_itself_it_starts_and_ends(looked: Looked) -> None:
    coming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return coming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    asyncio.run(debug.asgi_app([looked.purgatory])({"type": "lifespan"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_a_websocket_is_refused(looked: Looked) -> None:
    async def nothing(*_: object) -> Any:
        return {}

    with pytest.raises(ValueError, match="speak HTTP only, not 'websocket'"):
        asyncio.run(debug.asgi_app([])({"type": "websocket"}, nothing, nothing))


def ask_wsgi(path: str, mounted_at: str = "", method: str = "GET") -> tuple[str, Any, bytes]:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": mounted_at,
        "PATH_INFO": path,
        "QUERY_STRING": "",
    }
    setup_testing_defaults(environ)
    begun: list[Any] = []
    answer = validator(debug.wsgi_app())(environ, lambda *given: begun.append(given))  # type: ignore[arg-type]
    body = b"".join(answer)
    answer.close()  # type: ignore[attr-defined]
    status, headers = begun[0][:2]
    return status, dict(headers), body


def test_as_wsgi_it_keeps_to_the_standard(looked: Looked) -> None:
    status, headers, body = ask_wsgi("/state", PLACE)
    assert status == "200 OK"
    assert "Fetch" in [one["name"] for one in json.loads(body)["purgatories"]]
    assert int(headers["Content-Length"]) == len(body)
    assert ask_wsgi("/", PLACE)[0] == "200 OK"
    assert ask_wsgi("/nothing", PLACE)[0] == "404 Not Found"
    assert ask_wsgi("/state", PLACE, "DELETE")[0] == "405 Method Not Allowed"
    assert ask_wsgi("/state", PLACE, "HEAD")[2] == b""


def test_a_path_without_its_slash_redirects_to_the_page() -> None:
    status, headers, _ = ask_wsgi("", PLACE)
    assert (status, headers["Location"]) == ("307 Temporary Redirect", f"{PLACE}/")
