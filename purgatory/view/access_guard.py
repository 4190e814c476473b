"""Decides who may use what is served to a browser: not a web page of somebody else's.

A page in the developer's browser can send requests to this machine. It can't hide where it comes
from, nor send JSON or DELETE to another origin without asking before, nor know a token. A page
whose name was made to lead to this machine (DNS rebinding) is of the same origin, but names itself
as the host. So:

* With a token, every request for data has to carry it: ``Authorization: Bearer TOKEN``. The page's
  own files are given without, for it is the page that asks for the token; but by no host name that
  somebody else can give to this machine.
* Without, which is possible on the loopback interface alone, ``Host`` has to be an address or
  "localhost", whatever is asked for.
* Either way ``Origin``, where there is one, has to be the server's own, and what changes anything
  has to be sent as JSON.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Set
from urllib.parse import urlsplit

from aiohttp import web

from purgatory.view.page_routes import page_file

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_JSON = "application/json"
_SAFE_METHODS = frozenset({"GET", "HEAD"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on ``host``."""
    if host == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def access_guard(host: str, token: str | None) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Return the middleware that turns away who may not use a server.

    Args:
        host: where it listens; it may be called by that name, too.
        token: what each request has to carry; None asks for none.
    """

    names = {"localhost", host.lower()}
    if token is not None:  # elsewhere than on the loopback interface, this is how it is called
        names.add(socket.gethostname().lower())

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = _refusal(request, names, token)
        return await handler(request) if refusal is None else refusal

    return guard


def _refusal(request: web.Request, names: Set[str], token: str | None) -> web.Response | None:
    if token is not None and request.match_info.handler is not page_file:
        carried = request.headers.get("Authorization", "")
        if not hmac.compare_digest(carried.encode(), f"Bearer {token}".encode()):
            return _refuse(401, "send the token: --token, or Authorization: Bearer TOKEN")
    elif not _is_own_name(request.host, names):
        return _refuse(403, f"{request.host!r} is no name of this server; call it by its address")
    origin = request.headers.get("Origin")
    if origin is not None and origin not in (f"http://{request.host}", f"https://{request.host}"):
        return _refuse(403, f"pages of {origin!r} may not use this server")
    if request.method not in _SAFE_METHODS and request.content_type != _JSON:
        return _refuse(415, f"what changes anything is sent as Content-Type: {_JSON}")
    return None


def _is_own_name(called: str, names: Set[str]) -> bool:
    name = _name_of(called)
    return name is not None and (name in names or _address(name) is not None)


def _name_of(called: str) -> str | None:
    try:
        return urlsplit(f"//{called}").hostname
    except ValueError:
        return None


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _refuse(status: int, reason: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.json_response({"error": reason}, status=status, headers=headers)
