"""The server of the page: its files, walks of a wheel, and the control of access.

    GET /             index.html
    GET /wheel.html   the wheel alone
    GET /story.html   the story of a world
    GET /story        the data of a story, if the server has one
    GET /page/NAME    scripts, styles, the icon
    GET /wheel/walk?tick=1s&size=3&delays=1s,2s,3s&start_ms=0

A walk has ``tick_ms``, ``wheel_size``, ``start_ms``, and in ``steps`` the steps of ``wheel.walk``.
The response to bad parameters is 400 with {"error": ...}.

**Access.** A foreign web page in the developer's browser can send requests to this machine. But its
origin is known, it can't send JSON or DELETE to another origin without a preflight request, and it
knows no token. A page whose name resolves to this machine (DNS rebinding) has the same origin, but
its name as the host. Hence three rules:

* With a token, every request for data has to carry it: ``Authorization: Bearer TOKEN``. The page's
  own files have no data and need none, since the page itself asks for the token; but they are
  served under no host name that others can give to this machine.
* Without a token, which is possible on the loopback interface alone, the ``Host`` of each request
  has to be an address or "localhost".
* In both cases an ``Origin`` has to be the server's own, and changing requests have to be JSON.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from purgatory.settings.addresses import host_and_port, without_brackets
from purgatory.view.errors import ViewError
from purgatory.view.wheel import walk_document

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_JSON = "application/json"
_SAFE_METHODS = frozenset({"GET", "HEAD"})

_TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
}
_HEADERS = {
    # Names of groups and clients are text on the page. If one were taken for markup, nothing of it
    # would run.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


async def page_file(request: web.Request) -> web.Response:
    """Respond with a file of the page, read from the package wherever that is."""
    name = request.match_info.get("name", "index.html")
    file = files("purgatory.view") / "page" / name
    if not file.is_file():
        return web.json_response({"error": f"the page has no file {name}"}, status=404)
    kind = _TYPES[name.rpartition(".")[2]]
    return web.Response(body=file.read_bytes(), content_type=kind, charset="utf-8")


def add_page(app: web.Application) -> None:
    """Have ``app`` serve the page and walks of a wheel.

    Every response restricts the page (Content-Security-Policy).
    """
    app.on_response_prepare.append(_add_headers)
    app.add_routes(
        [
            web.get("/wheel/walk", _walk),
            web.get("/", page_file),
            web.get("/{name:(?:wheel|story)\\.html}", page_file),
            # No slash and one dot: no path leads out of the folder.
            web.get(f"/page/{{name:[A-Za-z0-9_-]+\\.(?:{'|'.join(_TYPES)})}}", page_file),
        ]
    )


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


async def _walk(request: web.Request) -> web.Response:
    try:
        body = await asyncio.to_thread(walk_document, request.query)
    except ValueError as error:
        return web.json_response({"error": str(error)}, status=400)
    return web.Response(body=body, content_type="application/json")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to ``host``."""
    if host == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def access_guard(host: str, token: str | None) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Return the middleware that refuses requests without access.

    Args:
        host: the server's address, which is a valid host, too.
        token: that of each request, if any.
    """
    names = {"localhost", host.lower()}
    if token is not None:  # the host beyond the loopback interface
        names.add(socket.gethostname().lower())

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = _access_error(request, names, token)
        return await handler(request) if refusal is None else refusal

    return guard


def _access_error(request: web.Request, names: Set[str], token: str | None) -> web.Response | None:
    if token is not None and request.match_info.handler is not page_file:
        header = request.headers.get("Authorization", "")
        # Bytes that are no UTF-8 come as surrogates.
        sent = header.encode(errors="surrogateescape")
        if not hmac.compare_digest(sent, f"Bearer {token}".encode()):
            return _error_response(401, "send the token: --token, or Authorization: Bearer TOKEN")
    elif not _is_own_name(request.host, names):
        return _error_response(
            403, f"{request.host!r} is no name of this server; call it by its address"
        )
    origin = request.headers.get("Origin")
    if origin is not None and origin not in (f"http://{request.host}", f"https://{request.host}"):
        return _error_response(403, f"pages of {origin!r} may not use this server")
    if request.method not in _SAFE_METHODS and request.content_type != _JSON:
        return _error_response(
            415, f"a request that changes anything is sent as Content-Type: {_JSON}"
        )
    return None


def _is_own_name(host_header: str, names: Set[str]) -> bool:
    name = _host_name(host_header)
    return name is not None and (name in names or _address(name) is not None)


def _host_name(host_header: str) -> str | None:
    try:
        return urlsplit(f"//{host_header}").hostname
    except ValueError:
        return None


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _error_response(status: int, reason: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.json_response({"error": reason}, status=status, headers=headers)


def check_address(host: str, port: int) -> None:
    """Check that a server can listen on an address.

    Raises:
        ViewError: it can't.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            without_brackets(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except (OSError, UnicodeError) as error:
        raise bind_error(host, port, error) from None


def bind_error(host: str, port: int, error: OSError | UnicodeError) -> ViewError:
    """Return the error of a view that can't listen at an address."""
    address = host_and_port(host, port)
    return ViewError(f"the view can't be served at {address}: {bind_error_text(error)}")


def bind_error_text(error: OSError | UnicodeError) -> str:
    """Return why a server can't listen at an address, and which address would do."""
    if isinstance(error, UnicodeError):
        return "that is no name of a machine"
    number = error.errno
    if number == errno.EADDRINUSE:
        return "the port is taken; port 0 takes a free one"
    if number == errno.EADDRNOTAVAIL:
        return "it is no address of this machine; 127.0.0.1 is, and 0.0.0.0 stands for all it has"
    if number is not None and number > 0:  # errors of the system; others are those of the resolver
        return os.strerror(number)
    return str(error.strerror or error)


@asynccontextmanager
async def wheel_page(host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve the page of the wheel alone; the context's value is its address.

    Raises:
        ViewError: no server can listen there.
    """
    app = web.Application(middlewares=[access_guard(host, None)])
    add_page(app)
    async with _serving(app, host, port) as address:
        yield f"{address}/wheel.html"


@asynccontextmanager
async def story_page(story: bytes, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve the page of a story; the context's value is its address.

    Beyond the loopback interface its data need a token, which the address has.

    Args:
        story: of `read_story`.

    Raises:
        ViewError: no server can listen there.
    """

    async def respond(request: web.Request) -> web.Response:
        return web.Response(body=story, content_type=_JSON)

    host = without_brackets(host)
    token = None if is_loopback(host) else secrets.token_urlsafe(24)
    app = web.Application(middlewares=[access_guard(host, token)])
    add_page(app)
    app.add_routes([web.get("/story", respond)])
    async with _serving(app, host, port) as address:
        yield f"{address}/story.html{'' if token is None else f'#token={token}'}"


@asynccontextmanager
async def _serving(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except (OSError, UnicodeError) as error:
            raise bind_error(host, port, error) from None
        yield f"http://{host_and_port(host, runner.addresses[0][1])}"
    finally:
        await runner.cleanup()


_STORY_FORMAT: Final = ("purgatory story", 1)


def read_story(path: Path) -> bytes:
    """Return the document of a story.

    Raises:
        ViewError: the file can't be read, or is no story.
    """
    try:
        data = path.read_bytes()
        document = json.loads(data)
    except OSError as error:
        raise ViewError(f"{path}: {error.strerror}") from None
    except ValueError:
        document = None
    found = document if isinstance(document, dict) else {}
    if (found.get("format"), found.get("version")) != _STORY_FORMAT:
        raise ViewError(
            f"{path} is no story of a world: World(story=True) saves one by "
            "world.save_story(path), and pytest when a test in a world fails; a trace is a folder"
        )
    return data
