"""The control of a running cluster, or a proxy, over HTTP: its state, its metrics, its faults.

    GET    /                 the page (``purgatory/view``)
    GET    /view/...         the data of the page, in docs/view.md (`LiveRoutes`)
    GET    /state            the result of `cluster_state`
    GET    /metrics          the purgatories of all brokers of a cluster, for Prometheus
    POST   /faults           {"kind": "stall_follower", "broker": 2, "for_s": 10}
    DELETE /faults/NUMBER    end one; DELETE /faults ends all
    POST   /brokers/ID/revive
    ...    /requests, /wait  the requests of clients, and waits (`request_routes`)

The response to an invalid request is 400 with {"error": ...}; without access, by `access_guard`,
401, 403 or 415.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from purgatory import metrics
from purgatory.cluster.cluster import Cluster, cluster_state
from purgatory.cluster.control.live_feed import ClusterModel, LiveFeed, NewModel, encoded
from purgatory.cluster.control.request_routes import ClusterRoutes, RequestRoutes
from purgatory.cluster.fault_injection import ConnectionFaults
from purgatory.cluster.listeners import MAX_PORT
from purgatory.cluster.request_traces import MAX_TRACES
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import (
    CutConnections,
    DelayResponses,
    Fault,
    FreezeMetadata,
    JumpClock,
    Kill,
    LoadCoordinator,
    LoseResponses,
    LowerLeaderEpochs,
    Pause,
    RefuseProduces,
    ReturnError,
    SlowResponses,
    StallFollower,
    Throttle,
    TruncateResponses,
    parse_fault,
)
from purgatory.kafka.faults.active_faults import fault_text
from purgatory.settings.addresses import host_and_port, without_brackets
from purgatory.view.page_server import Handler, access_guard, add_page, bind_error_text, is_loopback

_DEFAULT_FAULT_S = 10
_HOUR_MS = 3_600_000


def available_faults(state: dict[str, Any]) -> list[Fault]:
    """Return the faults that can be injected into each live broker of a cluster."""
    offers: list[Fault] = []
    for broker in state["brokers"]:
        if not broker.get("alive", True) or broker["id"] < 0:  # a proxy may not know an id yet
            continue
        number = broker["id"]
        offers += [
            StallFollower(number, for_s=_DEFAULT_FAULT_S),
            Kill(number, for_s=_DEFAULT_FAULT_S),
            Pause(number, for_s=_DEFAULT_FAULT_S),
            LoseResponses(number, count=1, api="produce"),
            RefuseProduces(number, count=1),
            ReturnError(number, count=3, api="produce", error="NOT_LEADER_OR_FOLLOWER"),
            LoadCoordinator(number, for_s=_DEFAULT_FAULT_S),
            FreezeMetadata(number, for_s=_DEFAULT_FAULT_S),
            LowerLeaderEpochs(number, for_s=_DEFAULT_FAULT_S),
            Throttle(number, throttle_ms=1_000, for_s=_DEFAULT_FAULT_S),
            DelayResponses(number, by_ms=100, distribution="exponential", for_s=_DEFAULT_FAULT_S),
            SlowResponses(number, bytes_per_s=1_000, for_s=_DEFAULT_FAULT_S),
            TruncateResponses(number, count=1),
            JumpClock(number, jump_ms=_HOUR_MS, for_s=_DEFAULT_FAULT_S),
            CutConnections(number),
        ]
    return offers


KEEPALIVE_INTERVAL_S = 15
"""The interval of the feed's messages without changes."""

WRITE_TIMEOUT_S = 30
"""The time without a read byte after which a viewer is disconnected."""

_MAX_DIGITS = 19
_CHECK_INTERVAL_S = 1
"""The interval of checks of a viewer's connection without changes."""


class LiveRoutes:
    """Serves the page and its data: the feed, and the available faults.

    Args:
        faults, state, new_model, mode: as `FaultControl` has them.
    """

    def __init__(
        self,
        faults: ConnectionFaults,
        state: Callable[[], dict[str, Any]],
        new_model: NewModel,
        mode: Literal["live", "proxy"],
    ) -> None:
        self._faults = faults
        self._current_state = state
        self._mode = mode
        self.feed = LiveFeed(new_model)

    def add_to(self, app: web.Application) -> None:
        """Add the routes to ``app``, which ends its viewers on shutdown."""
        add_page(app)
        app.add_routes(
            [
                web.get("/view/about", self._describe),
                web.get("/view/state", self._state),
                web.get("/view/live", self._live, allow_head=False),
                web.get("/view/request-traces", self._request_traces),
                web.get("/view/request-trace", self._request_trace),
                web.get("/view/faults", self._offer_faults),
            ]
        )
        app.on_shutdown.append(self._close)

    async def _close(self, app: web.Application) -> None:
        self.feed.close()

    async def _describe(self, request: web.Request) -> web.Response:
        brokers = len(self._current_state()["brokers"])
        cluster = f"{brokers} broker{'s' if brokers > 1 else ''}, live"
        return web.json_response(
            {
                "mode": self._mode,
                "name": cluster if self._mode == "live" else "Brokers behind a proxy",
                "begin_us": 0,
                "end_us": None,
                "may_change": True,
                "complete": True,
                "notes": [],
            }
        )

    async def _state(self, request: web.Request) -> web.Response:
        pieces = [chunk async for chunk in encoded(await self.feed.state())]
        return web.Response(body=b"".join(pieces), content_type="application/json")

    async def _offer_faults(self, request: web.Request) -> web.Response:
        faults = []
        for fault in available_faults(self._current_state()):
            if fault.kind in self._faults.refusals:
                continue
            fault_body = {"kind": fault.kind, **fault.settings}
            if fault.for_s is not None:
                fault_body["for_s"] = fault.for_s
            faults.append({"text": fault_text(fault), "ask": fault_body})
        return web.json_response({"faults": faults})

    async def _request_traces(self, request: web.Request) -> web.Response:
        limit = parse_int(request, "limit", "20")
        return web.json_response(
            {"request_traces": self.feed.request_traces.latest(min(limit, MAX_TRACES))}
        )

    async def _request_trace(self, request: web.Request) -> web.Response:
        topic = request.query.get("topic", "")
        partition, offset = parse_int(request, "partition"), parse_int(request, "offset")
        journey = self.feed.request_traces.find_by_record(topic, partition, offset)
        if journey is not None:
            return web.json_response(journey)
        error = (
            f"no produce that brought record {offset} of {topic}-{partition} was seen: those of "
            f"the latest {MAX_TRACES} are known that came while a page was open"
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
                request.transport.abort()  # unread events are dropped
        finally:
            self.feed.leave(viewer)
        return response


def parse_int(request: web.Request, name: str, default: str = "") -> int:
    """Return an argument that is a whole number.

    Raises:
        ClusterError: the argument is none.
    """
    text = request.query.get(name, default)
    if not (text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS):
        raise ClusterError(f"{name} is a whole number, not {text[:50]!r}")
    return int(text)


async def _send(
    request: web.Request, response: web.StreamResponse, events: AsyncIterator[bytes]
) -> None:
    """Send all pieces to a viewer.

    Raises:
        ConnectionError: the viewer is gone.
        TimeoutError: the viewer reads nothing.
    """
    next_event: asyncio.Task[bytes] | None = None
    idle_s = 0.0
    try:
        while True:
            if next_event is None:
                next_event = asyncio.ensure_future(_next(events))
            done, _ = await asyncio.wait([next_event], timeout=_CHECK_INTERVAL_S)
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the viewer is gone")
            if done:
                chunk, next_event, idle_s = next_event.result(), None, 0.0
                if not chunk:
                    return
            else:
                idle_s += _CHECK_INTERVAL_S
                if idle_s < KEEPALIVE_INTERVAL_S:
                    continue
                chunk, idle_s = b":\n\n", 0.0
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await response.write(chunk)
    finally:
        if next_event is not None:
            next_event.cancel()
            with suppress(asyncio.CancelledError):
                await next_event


async def _next(events: AsyncIterator[bytes]) -> bytes:
    """Return the next piece; None at the end."""
    return await anext(events, b"")


def _url(host: str, port: int) -> str:
    return f"http://{host_and_port(host, port)}"


class FaultControl:
    """Serves the faults and the state of a cluster, or of a proxy, and the page that shows them.

    Args:
        faults: the faults.
        state: returns the state, as `cluster_state` does.
        new_model: makes the model of the page.
        routes: serves the requests of clients.
        mode: the kind of page: of a live cluster, or of a proxy.
        host, port: the address; with port 0 the system chooses one.
        token: the token of each request. None: no token on the loopback interface, and beyond it a
            new one: ``token``.
    """

    _contents = "faults, /state"

    def __init__(
        self,
        faults: ConnectionFaults,
        state: Callable[[], dict[str, Any]],
        new_model: NewModel,
        routes: RequestRoutes,
        mode: Literal["live", "proxy"],
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
    ) -> None:
        self.live = LiveRoutes(faults, state, new_model, mode)
        self._faults = faults
        self._current_state = state
        self._routes = routes
        self._host = host = without_brackets(host)
        self.port = port
        self._makes_token = token is None and not is_loopback(host)
        self.token = secrets.token_urlsafe(24) if self._makes_token else token
        self._runners: list[web.AppRunner] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.url}>"

    @property
    def url(self) -> str:
        """The address, such as "http://127.0.0.1:9990"."""
        return _url(self._host, self.port)

    @property
    def page_url(self) -> str:
        """The page's address. A token follows #, which browsers do not send."""
        return f"{self.url}/" if self.token is None else f"{self.url}/#token={quote(self.token)}"

    def addresses(self) -> list[str]:
        """Return lines with the addresses, for a user."""
        lines = [f"control: {self.url} ({self._contents})", f"view: {self.page_url}"]
        if self._makes_token:
            lines.append(f"control token: {self.token} (for PURGATORY_CONTROL_TOKEN)")
        return lines

    async def start(self) -> None:
        """Listen.

        Raises:
            ClusterError: the address can't be used.
        """
        app = web.Application(middlewares=[access_guard(self._host, self.token), _handle_errors])
        self._add_routes(app)
        self.port = await self._listen("the control", app, self._host, self.port)

    def _add_routes(self, app: web.Application) -> None:
        self.live.add_to(app)
        self._routes.add_to(app)
        app.add_routes(
            [
                web.get("/state", self._state),
                web.post("/faults", self._begin_fault),
                web.delete("/faults", self._end_all),
                web.delete("/faults/{number}", self._end_fault),
                web.post("/brokers/{broker}/revive", self._revive),
            ]
        )

    async def _listen(self, label: str, app: web.Application, host: str, port: int) -> int:
        """Serve ``app``, and return its port."""
        if not 0 <= port <= MAX_PORT:  # uvloop takes it modulo 65,536
            raise ClusterError(f"{label} can't be served at port {port}: 0 to {MAX_PORT}")
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        self._runners.append(runner)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await self.stop()
            raise ClusterError(
                f"{label} can't be served at {host_and_port(host, port)}: {bind_error_text(error)}"
            ) from error
        return int(runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        while self._runners:
            await self._runners.pop().cleanup()

    async def _state(self, request: web.Request) -> web.Response:
        return web.json_response(self._current_state())

    async def _begin_fault(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
        except (ValueError, LookupError, RecursionError) as error:  # also of charsets and brackets
            raise ClusterError(f"a fault is asked for in JSON: {error}") from None
        result = await begin_fault(self._faults, body)
        return web.json_response(result)

    async def _end_fault(self, request: web.Request) -> web.Response:
        number = request.match_info["number"]
        for fault in self._faults.active:
            if str(fault.number) == number:
                fault.end()
                return web.json_response(fault.as_dict())
        raise ClusterError(f"no fault {number} is in force")

    async def _end_all(self, request: web.Request) -> web.Response:
        ended = len(self._faults.active)
        self._faults.end_all()
        return web.json_response({"ended": ended})

    async def _revive(self, request: web.Request) -> web.Response:
        broker = request.match_info["broker"]
        if not (broker.isascii() and broker.isdigit() and len(broker) < _MAX_DIGITS):
            raise ClusterError(f"a broker is a number, not {broker[:50]!r}")
        await self._faults.revive(int(broker))
        return web.json_response({"broker": int(broker)})


class Control(FaultControl):
    """Serves the control of one cluster, with its metrics.

    Args:
        cluster: the cluster.
        host, port, token: as `FaultControl` has them.
        metrics_port: another port of /metrics, at ``metrics_host``, without a token; None: there is
            none.
        metrics_host: the host of that port.
    """

    _contents = "faults, /state, /metrics"

    def __init__(
        self,
        cluster: Cluster,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
    ) -> None:
        state, new_model = partial(cluster_state, cluster), partial(ClusterModel, cluster)
        routes = ClusterRoutes(cluster)
        super().__init__(cluster.fault, state, new_model, routes, "live", host, port, token)
        self._cluster = cluster
        self.metrics_port = metrics_port
        self._metrics_host = without_brackets(metrics_host)

    @property
    def metrics_url(self) -> str:
        """The address of the metrics: without a token, if there is one, or that of the control."""
        if self.metrics_port is None:
            return f"{self.url}/metrics"
        return f"{_url(self._metrics_host, self.metrics_port)}/metrics"

    def addresses(self) -> list[str]:
        lines = [
            f"{listener.name} ({listener.security_protocol}): "
            f"{self._cluster.bootstrap_servers_of(listener.name)}"
            for listener in self._cluster.config.all_listeners[1:]
        ]
        lines += super().addresses()
        if self.metrics_port is not None:
            lines.append(f"metrics: {self.metrics_url}")
        return lines

    async def start(self) -> None:
        await super().start()
        if self.metrics_port is not None:
            alone = web.Application()
            alone.add_routes([web.get("/metrics", self._metrics)])
            self.metrics_port = await self._listen(
                "/metrics", alone, self._metrics_host, self.metrics_port
            )

    def _add_routes(self, app: web.Application) -> None:
        super()._add_routes(app)
        app.add_routes([web.get("/metrics", self._metrics)])

    async def _metrics(self, request: web.Request) -> web.Response:
        registry = CollectorRegistry()
        for broker in self._cluster.brokers.values():
            if broker.alive:
                for purgatory in broker.purgatories:
                    metrics.register(purgatory, registry, broker=broker.broker_id)
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )


async def begin_fault(faults: ConnectionFaults, body: object) -> dict[str, Any]:
    """Begin the fault of a request body, and return the response.

    Raises:
        ClusterError: there is no such kind, or these are not its arguments.
    """
    begun = await faults.begin(parse_fault(body))
    if isinstance(begun.fault, CutConnections):
        return {"kind": begun.fault.kind, "result": begun.uses}
    return begun.as_dict()


@web.middleware
async def _handle_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ClusterError as error:
        return web.json_response({"error": str(error)}, status=400)
