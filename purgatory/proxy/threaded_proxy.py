"""A proxy on a thread of its own, for programs that block: tests, scripts, notebooks.

    with ThreadedProxy(ProxyConfig(to=["kafka-1:9092"])) as proxy:
        producer = Producer({"bootstrap.servers": proxy.bootstrap_servers})
        with proxy.fault.lose_responses(count=1, api="Produce"):
            ...

Ground rules: the proxy lives on the thread's event loop; each call here is passed to it, and waited
for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from purgatory.cluster.threaded_cluster import ThreadedFaults, ThreadedLoop
from purgatory.cluster.trace import ClusterTrace
from purgatory.kafka.errors import ClusterError
from purgatory.proxy.faults import ProxyFaults
from purgatory.proxy.proxy import Proxy, ProxyConfig, running_proxy

if TYPE_CHECKING:
    from purgatory.proxy.control import ProxyControl


class ThreadedProxy(ThreadedLoop):
    """Runs a proxy beside blocking code. Use it as a context manager, or start and stop it.

    Args:
        config: what it is to be.
        trace: records what passes.
        recorded: keep in memory what passes, for `audit`: what the brokers of a cluster that is not
            ours did by themselves is not in it, such as how transactions ended. In the place of
            `trace`, and at its cost.

    ``fault`` has the methods of `ProxyFaults`, each of which returns a `ThreadedFault`.
    """

    def __init__(
        self, config: ProxyConfig, trace: ClusterTrace | None = None, recorded: bool = False
    ) -> None:
        super().__init__("proxy", trace, recorded)
        self.config = config
        self.fault = ThreadedFaults(self)
        self._proxy: Proxy | None = None

    def __repr__(self) -> str:
        state = "not started" if self._proxy is None else self._proxy.bootstrap_servers
        return f"<{type(self).__name__} {state} to {', '.join(self.config.to)}>"

    @property
    def running(self) -> Proxy:
        """The proxy itself, to be touched on its own thread only: see `call`."""
        if self._proxy is None:
            raise ClusterError("the proxy was not started")
        return self._proxy

    @property
    def running_faults(self) -> ProxyFaults:
        return self.running.fault

    @property
    def bootstrap_servers(self) -> str:
        """What a client is given."""
        return self.running.bootstrap_servers

    def state(self) -> dict[str, Any]:
        """Return `Proxy.state`."""
        state: dict[str, Any] = self.call(self.running.state)
        return state

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        async with running_proxy(self.config, self._trace) as self._proxy:
            yield

    def _new_control(self, host: str, port: int, token: str | None) -> ProxyControl:
        # It comes with aiohttp, which takes as long as nearly all the rest, and few need it.
        from purgatory.proxy.control import ProxyControl

        return ProxyControl(self.running, host, port, token)
