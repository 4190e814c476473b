"""The control of a running cluster over HTTP: its state, its metrics, its faults.

    GET    /                 a page that shows all this (``purgatory/view``)
    GET    /view/...         what the page reads (``live_routes``)
    GET    /state            what `cluster_state` tells
    GET    /metrics          the purgatories of all brokers, for Prometheus
    POST   /faults           {"kind": "stall_follower", "broker": 2, "for_s": 10}
    DELETE /faults/NUMBER    end one; DELETE /faults ends all
    POST   /brokers/ID/revive

A wrong request is answered with 400 and {"error": ...}; who may not ask, by
`access_guard`, with 401, 403 or 415.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from purgatory import metrics
from purgatory.cluster.control.cluster_state import cluster_state
from purgatory.cluster.control.live_routes import LiveRoutes
from purgatory.cluster.fault_injection import Faults
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import CutConnections, fault_of
from purgatory.settings.addresses import host_and_port, without_brackets
from purgatory.view.access_guard import Handler, access_guard, is_loopback
from purgatory.view.page_routes import add_page
from purgatory.view.wheel_walks import add_wheel_walks
from purgatory.view.why_not_served import why_not_served

if TYPE_CHECKING:
    from purgatory.cluster.cluster import Cluster


def _url(host: str, port: int) -> str:
    return f"http://{host_and_port(host, port)}"


class Control:
    """Serves the control of one cluster.

    Args:
        cluster: which.
        host, port: where; port 0 lets the system choose.
        token: what each request has to carry. None asks for none on the loopback interface, and
            beyond it has one made up: ``token``.
        metrics_port: where /metrics is served besides, at ``metrics_host``, without a token; None
            serves it nowhere else.
        metrics_host: where others are that may read the metrics.
    """

    def __init__(
        self,
        cluster: Cluster,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
    ) -> None:
        self._cluster = cluster
        self._host = host = without_brackets(host)
        self.port = port
        self.token = token
        if token is None and not is_loopback(host):
            self.token = secrets.token_urlsafe(24)
        self.metrics_port = metrics_port
        self._metrics_host = without_brackets(metrics_host)
        self._runners: list[web.AppRunner] = []
        self.live = LiveRoutes(cluster)

    @property
    def url(self) -> str:
        """Where it is: "http://127.0.0.1:9990"."""
        return _url(self._host, self.port)

    @property
    def page_url(self) -> str:
        """The page's address. A token comes after #, which browsers send to no server."""
        return f"{self.url}/" if self.token is None else f"{self.url}/#token={quote(self.token)}"

    @property
    def metrics_url(self) -> str:
        """Where the metrics are served without a token, or else with all the rest."""
        if self.metrics_port is None:
            return f"{self.url}/metrics"
        return f"{_url(self._metrics_host, self.metrics_port)}/metrics"

    async def start(self) -> None:
        """Listen.

        Raises:
            ClusterError: it can't listen there.
        """
        app = web.Application(middlewares=[access_guard(self._host, self.token), _answer_errors])
        add_page(app)
        add_wheel_walks(app)
        self.live.add_to(app)
        app.add_routes(
            [
                web.get("/state", self._state),
                web.get("/metrics", self._metrics),
                web.post("/faults", self._begin_fault),
                web.delete("/faults", self._end_all),
                web.delete("/faults/{number}", self._end_fault),
                web.post("/brokers/{broker}/revive", self._revive),
            ]
        )
        self.port = await self._listen("the control", app, self._host, self.port)
        if self.metrics_port is not None:
            alone = web.Application()
            alone.add_routes([web.get("/metrics", self._metrics)])
            self.metrics_port = await self._listen(
                "/metrics", alone, self._metrics_host, self.metrics_port
            )

    async def _listen(self, what: str, app: web.Application, host: str, port: int) -> int:
        """Serve ``app``, and return the port that it has."""
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        self._runners.append(runner)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await self.stop()
            raise ClusterError(
                f"{what} can't be served at {host_and_port(host, port)}: {why_not_served(error)}"
            ) from error
        return int(runner.addresses[0][1])

    async def stop(self) -> None:
        """Listen no more."""
        while self._runners:
            await self._runners.pop().cleanup()

    async def _state(self, request: web.Request) -> web.Response:
        return web.json_response(cluster_state(self._cluster))

    async def _metrics(self, request: web.Request) -> web.Response:
        registry = CollectorRegistry()
        for broker in self._cluster.brokers.values():
            if broker.alive:
                for purgatory in broker.purgatories:
                    metrics.register(purgatory, registry, broker=broker.broker_id)
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def _begin_fault(self, request: web.Request) -> web.Response:
        try:
            asked = await request.json()
        except (ValueError, RecursionError) as error:  # the latter where brackets are too deep
            raise ClusterError(f"a fault is asked for in JSON: {error}") from None
        result = await begin_fault(self._cluster.fault, asked)
        return web.json_response(result)

    async def _end_fault(self, request: web.Request) -> web.Response:
        number = request.match_info["number"]
        for fault in self._cluster.fault.active:
            if str(fault.number) == number:
                fault.end()
                return web.json_response(fault.as_dict())
        raise ClusterError(f"no fault {number} is in force")

    async def _end_all(self, request: web.Request) -> web.Response:
        ended = len(self._cluster.fault.active)
        self._cluster.fault.end_all()
        return web.json_response({"ended": ended})

    async def _revive(self, request: web.Request) -> web.Response:
        broker = request.match_info["broker"]
        if not broker.isdigit():
            raise ClusterError(f"a broker is a number, not {broker!r}")
        await self._cluster.fault.revive(int(broker))
        return web.json_response({"broker": int(broker)})


async def begin_fault(faults: Faults, asked: object) -> dict[str, Any]:
    """Begin the fault that a mapping asks for, and return what is answered.

    Raises:
        ClusterError: there is no such kind, or these are not its arguments.
    """
    begun = await faults.begin(fault_of(asked))
    if isinstance(begun.fault, CutConnections):
        return {"kind": begun.fault.kind, "result": begun.uses}
    return begun.as_dict()


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ClusterError as error:
        return web.json_response({"error": str(error)}, status=400)
