"""The debug pages, as an ASGI and as a WSGI application."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.debug.description import describe
from purgatory.debug.history import History

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_FILES = {"": "page.html", "page.js": "page.js", "page.css": "page.css"}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
}
_HEADERS = (
    # Names of keys and operations are text on the page; were one taken for markup, nothing of it
    # would run.
    ("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; "
     "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)  # fmt: skip

_history = History()
"""Of this process; begun by its first application."""


def asgi_app(
    purgatories: Iterable[DelayedOperationPurgatory | AsyncPurgatory] | None = None,
) -> Callable[[Message, Receive, Send], Coroutine[Any, Any, None]]:
    """Return an ASGI application with the page, and with ``state``, its data as JSON.

    A thread samples the counters every five seconds from now on, for the rates of the last
    minutes.

    Args:
        purgatories: which are shown; by default all of this process, those made later too.
    """
    pages = DebugPages(purgatories)

    async def application(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # served by itself, not mounted
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"the debug pages speak HTTP only, not {scope['type']!r}")
        mounted_at = scope.get("root_path", "")
        path = scope["path"].removeprefix(mounted_at)
        response = pages.respond(scope["method"], path, mounted_at)
        headers = [(name.lower().encode(), value.encode()) for name, value in response.headers]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else response.body
        await send({"type": "http.response.body", "body": body})

    return application


async def _live(receive: Receive, send: Send) -> None:
    for kind in ("startup", "shutdown"):
        while (await receive())["type"] != f"lifespan.{kind}":
            pass
        await send({"type": f"lifespan.{kind}.complete"})


def wsgi_app(
    purgatories: Iterable[DelayedOperationPurgatory | AsyncPurgatory] | None = None,
) -> Callable[[WSGIEnvironment, StartResponse], list[bytes]]:
    """Return a WSGI application with the page, and with ``state``, its data as JSON.

    A thread samples the counters every five seconds from now on, for the rates of the last
    minutes.

    Args:
        purgatories: which are shown; by default all of this process, those made later too.
    """
    pages = DebugPages(purgatories)

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        method = environ["REQUEST_METHOD"]
        # WSGI hands the bytes of a path over as if they were Latin-1.
        mounted_at = environ.get("SCRIPT_NAME", "").encode("latin-1").decode(errors="replace")
        response = pages.respond(method, environ.get("PATH_INFO", ""), mounted_at)
        start_response(
            f"{response.status} {HTTPStatus(response.status).phrase}", list(response.headers)
        )
        return [] if method == "HEAD" else [response.body]

    return application


@dataclass(frozen=True)
class Response:
    """The response to a request."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class DebugPages:
    """The HTTP responses of the debug page.

    Args:
        purgatories: which are shown; by default all of this process.
    """

    def __init__(
        self, purgatories: Iterable[DelayedOperationPurgatory | AsyncPurgatory] | None = None
    ) -> None:
        self._purgatories = None if purgatories is None else list(purgatories)
        _history.start()

    def respond(self, method: str, path: str, mounted_at: str = "") -> Response:
        """Return the response to a request.

        Args:
            method: GET or HEAD; others are refused.
            path: below the place where the pages are mounted, with its slash.
            mounted_at: that place, without a slash at its end.
        """
        if method not in {"GET", "HEAD"}:
            return _response(
                405, "txt", b"The debug pages only read: GET or HEAD.\n", "Allow", "GET, HEAD"
            )
        if not path:
            return _response(307, "txt", b"", "Location", f"{quote(mounted_at)}/")
        name = path.removeprefix("/")
        if name == "state":
            _history.start()  # a fork leaves no thread that does
            state = describe(self._purgatories, history=_history)
            return _response(200, "json", json.dumps(state).encode())
        if name not in _FILES:
            return _response(404, "txt", b"There are: the page itself, and state (JSON).\n")
        file = files("purgatory.debug") / "page" / _FILES[name]
        return _response(200, file.name.rpartition(".")[2], file.read_bytes())


def _response(status: int, kind: str, body: bytes, name: str = "", value: str = "") -> Response:
    headers = (
        ("Content-Type", _TYPES[kind]),
        ("Content-Length", str(len(body))),
        *_HEADERS,
        *(((name, value),) if name else ()),
    )
    return Response(status, headers, body)
