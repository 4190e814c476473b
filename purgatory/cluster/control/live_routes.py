"""The live feed over HTTP, for the page: what docs/view.md lists below ``view/``.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import web

from purgatory.cluster.control.cluster_state import cluster_state
from purgatory.cluster.control.live_feed import LiveFeed, encoded
from purgatory.cluster.control.offered_faults import offered_faults
from purgatory.cluster.produce_journeys import MOST_KEPT
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults.active_faults import fault_text

if TYPE_CHECKING:
    from purgatory.cluster.cluster import Cluster

SIGN_OF_LIFE_S = 15
"""How often a viewer hears from the feed when nothing happens."""
LONGEST_WRITE_S = 30
"""How long a viewer may take nothing of what it is sent, before it is cut off."""
_MOST_DIGITS = 19
_LOOK_S = 1
"""How often it is looked whether a viewer is there, when nothing happens."""


class LiveRoutes:
    """Serves the feed of one cluster.

    Args:
        cluster: which.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.feed = LiveFeed(cluster)

    def add_to(self, app: web.Application) -> None:
        """Have ``app`` serve it, and end its viewers when it ends."""
        app.add_routes(
            [
                web.get("/view/about", self._about),
                web.get("/view/state", self._state),
                web.get("/view/live", self._live, allow_head=False),
                web.get("/view/journeys", self._journeys),
                web.get("/view/journey", self._journey),
                web.get("/view/faults", self._faults),
            ]
        )
        app.on_shutdown.append(self._close)

    async def _close(self, app: web.Application) -> None:
        self.feed.close()

    async def _about(self, request: web.Request) -> web.Response:
        brokers = len(self._cluster.brokers)
        return web.json_response(
            {
                "mode": "live",
                "name": f"{brokers} broker{'s' if brokers > 1 else ''}, live",
                "begin_us": 0,
                "end_us": None,
                "may_change": True,
                "complete": True,
                "notes": [],
            }
        )

    async def _state(self, request: web.Request) -> web.Response:
        pieces = [piece async for piece in encoded(await self.feed.state())]
        return web.Response(body=b"".join(pieces), content_type="application/json")

    async def _faults(self, request: web.Request) -> web.Response:
        offered = offered_faults(cluster_state(self._cluster))
        faults = []
        for fault in offered:
            ask = {"kind": fault.kind, **fault.settings}
            if fault.for_s is not None:
                ask["for_s"] = fault.for_s
            faults.append({"text": fault_text(fault), "ask": ask})
        return web.json_response({"faults": faults})

    async def _journeys(self, request: web.Request) -> web.Response:
        limit = whole(request, "limit", "20")
        return web.json_response({"journeys": self.feed.journeys.latest(min(limit, MOST_KEPT))})

    async def _journey(self, request: web.Request) -> web.Response:
        topic = request.query.get("topic", "")
        partition, offset = whole(request, "partition"), whole(request, "offset")
        journey = self.feed.journeys.of_record(topic, partition, offset)
        if journey is not None:
            return web.json_response(journey)
        error = (
            f"no produce that brought record {offset} of {topic}-{partition} was seen: those of "
            f"the latest {MOST_KEPT} are known that came while a page was open"
        )
        return web.json_response({"error": error}, status=404)

    async def _live(self, request: web.Request) -> web.StreamResponse:
        try:
            viewer = self.feed.join()
        except ClusterError as error:
            return web.json_response({"error": str(error)}, status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            await _send(request, response, self.feed.events(viewer))
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()  # what it has not taken goes
        finally:
            self.feed.leave(viewer)
        return response


def whole(request: web.Request, name: str, default: str = "") -> int:
    """Return an argument that is a whole number.

    Raises:
        ClusterError: it is none.
    """
    text = request.query.get(name, default)
    if not (text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS):
        raise ClusterError(f"{name} is a whole number, not {text[:50]!r}")
    return int(text)


async def _send(
    request: web.Request, response: web.StreamResponse, events: AsyncIterator[bytes]
) -> None:
    """Send what comes until nothing comes any more, or nobody takes it.

    Raises:
        ConnectionError: the viewer is gone.
        TimeoutError: it takes nothing.
    """
    coming: asyncio.Task[bytes] | None = None
    idle_s = 0.0
    try:
        while True:
            if coming is None:
                coming = asyncio.ensure_future(_next(events))
            done, _ = await asyncio.wait([coming], timeout=_LOOK_S)
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the viewer is gone")
            if done:
                piece, coming, idle_s = coming.result(), None, 0.0
                if not piece:
                    return
            else:
                idle_s += _LOOK_S
                if idle_s < SIGN_OF_LIFE_S:
                    continue
                piece, idle_s = b":\n\n", 0.0
            async with asyncio.timeout(LONGEST_WRITE_S):
                await response.write(piece)
    finally:
        if coming is not None:
            coming.cancel()
            with suppress(asyncio.CancelledError):
                await coming


async def _next(events: AsyncIterator[bytes]) -> bytes:
    """Return the next piece; none at the end."""
    return await anext(events, b"")
