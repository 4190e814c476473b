"""The server of a traced run: the page, and the data that it requests.

    GET view/about | view/state?at_us=T | view/changes?from_us=A&until_us=B&limit=N
    GET view/request-traces?at_us=T&limit=N | view/request-trace?topic=T&partition=P&offset=O
    GET view/next?after_us=T | view/previous?before_us=T | view/bookmarks

The response to bad parameters is 400 with {"error": ...}, to a record without a trace 404, and
without access that of `access_guard`.

Ground rules: requests are handled on the loop's thread within milliseconds each; requests that read
whole columns are computed on another thread.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from purgatory.settings.addresses import host_and_port, without_brackets
from purgatory.view.bookmarks import Bookmarks
from purgatory.view.errors import ViewError
from purgatory.view.page_server import access_guard, add_page, bind_error, is_loopback
from purgatory.view.time_travel import TracedRun
from purgatory.view.trace_columns import LATEST_US

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_MOST_TRACES = 200


class ReplayServer:
    """Serves one traced run.

    Args:
        run: the run.
        host, port: where to listen; port 0 lets the system choose.

    Beyond the loopback interface each request has to carry ``token``, which is random.
    """

    def __init__(self, run: TracedRun, host: str = "127.0.0.1", port: int = 0) -> None:
        host = without_brackets(host)
        self.port = port
        self.token = None if is_loopback(host) else secrets.token_urlsafe(24)
        self._run = run
        self._host = host
        self._bookmarks = Bookmarks(run)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """The address of the page, with the token if there is one."""
        token = "" if self.token is None else f"#token={self.token}"
        return f"http://{host_and_port(self._host, self.port)}/{token}"

    async def start(self) -> None:
        """Listen, and begin to search for bookmarks.

        Raises:
            ViewError: no server can listen there.
        """
        app = web.Application(middlewares=[access_guard(self._host, self.token), _handle_errors])
        add_page(app)
        app.add_routes(
            [
                web.get("/view/about", self._describe),
                web.get("/view/state", self._state),
                web.get("/view/changes", self._changes),
                web.get("/view/request-traces", self._request_traces),
                web.get("/view/request-trace", self._request_trace),
                web.get("/view/next", self._next),
                web.get("/view/previous", self._previous),
                web.get("/view/bookmarks", self._list_bookmarks),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self.port).start()
        except (OSError, UnicodeError) as error:
            await self.stop()
            raise bind_error(self._host, self.port, error) from None
        self.port = int(self._runner.addresses[0][1])
        self._bookmarks.start()

    async def stop(self) -> None:
        """Stop listening, and end the search for bookmarks."""
        await asyncio.to_thread(self._bookmarks.stop)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _describe(self, request: web.Request) -> web.Response:
        return web.json_response(await asyncio.to_thread(self._run.about))

    async def _state(self, request: web.Request) -> web.Response:
        at_us = _parse_time(request, "at_us")
        return web.json_response(await asyncio.to_thread(self._run.state, at_us))

    async def _changes(self, request: web.Request) -> web.Response:
        from_us, until_us = _parse_time(request, "from_us"), _parse_time(request, "until_us")
        if until_us < from_us:
            raise ViewError(f"until_us={until_us} is before from_us={from_us}")
        limit = _parse_int(request, "limit", 5_000, 1, 50_000)
        changes = await asyncio.to_thread(self._run.changes, from_us, until_us, limit)
        return web.json_response(changes)

    async def _request_traces(self, request: web.Request) -> web.Response:
        at_us, limit = (
            _parse_time(request, "at_us"),
            _parse_int(request, "limit", 20, 1, _MOST_TRACES),
        )

        def latest() -> list[dict[str, Any]]:
            return self._run.request_traces.latest(at_us, limit)

        return web.json_response({"request_traces": await asyncio.to_thread(latest)})

    async def _request_trace(self, request: web.Request) -> web.Response:
        topic = request.query.get("topic", "")
        partition = _parse_int(request, "partition", None, 0, 2**31 - 1)
        offset = _parse_int(request, "offset", None, 0, 2**63 - 1)

        def find_by_record() -> dict[str, Any]:
            return self._run.request_traces.find_by_record(topic, partition, offset)

        try:
            return web.json_response(await asyncio.to_thread(find_by_record))
        except ViewError as error:
            return web.json_response({"error": str(error)}, status=404)

    async def _next(self, request: web.Request) -> web.Response:
        return web.json_response({"at_us": self._run.next(_parse_time(request, "after_us"))})

    async def _previous(self, request: web.Request) -> web.Response:
        return web.json_response({"at_us": self._run.previous(_parse_time(request, "before_us"))})

    async def _list_bookmarks(self, request: web.Request) -> web.Response:
        return web.json_response({"bookmarks": self._bookmarks.entries()})


def _parse_time(request: web.Request, name: str) -> int:
    return _parse_int(request, name, None, 0, LATEST_US)


def _parse_int(
    request: web.Request, name: str, default: int | None, minimum: int, maximum: int
) -> int:
    text = request.query.get(name)
    if text is None and default is not None:
        return default
    # isdecimal: int() takes more than a page ever sends, such as 1_000.
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 19:
        problem = "is missing" if text is None else f"is {text[:40]!r}"
        raise ViewError(f"{name} {problem}: give a whole number from {minimum} to {maximum}")
    if not minimum <= int(text) <= maximum:
        raise ViewError(f"{name}={text}: give a whole number from {minimum} to {maximum}")
    return int(text)


@web.middleware
async def _handle_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ViewError as error:
        return web.json_response({"error": str(error)}, status=400)
