"""A proxy on a thread of its own, for programs that block: tests, scripts, notebooks.

    with ThreadedProxy(ProxyConfig(to=["kafka-1:9092"])) as proxy:
        producer = Producer({"bootstrap.servers": proxy.bootstrap_servers})
        with proxy.fault.lose_responses(count=1, api="Produce"):
            ...

Ground rules: those of `threaded_cluster`.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from purgatory.cluster.threaded_cluster import ThreadedLoop
from purgatory.cluster.trace import ClusterTrace
from purgatory.proxy.proxy import Proxy, ProxyConfig
from purgatory.settings.problems import hint_at_arguments

if TYPE_CHECKING:
    from purgatory.cluster.control.control import FaultControl


@hint_at_arguments(config=ProxyConfig)
class ThreadedProxy(ThreadedLoop[Proxy]):
    """Runs a proxy beside blocking code. Use it as a context manager, or start and stop it.

    Args:
        config: the configuration.
        trace: records requests and responses.
        recorded: keep the trace in memory, for `audit`, in place of `trace`. Actions of brokers are
            missing, such as the abort of a transaction by its coordinator.

    ``fault`` has the methods of `ProxyFaults`, each of which returns a `ThreadedFault`.
    """

    def __init__(
        self, config: ProxyConfig, trace: ClusterTrace | None = None, recorded: bool = False
    ) -> None:
        super().__init__("proxy", trace, recorded)
        self.config = config

    def __repr__(self) -> str:
        state = "not started" if self._served is None else self._served.bootstrap_servers
        return f"<{type(self).__name__} {state} to {', '.join(self.config.to)}>"

    def state(self) -> dict[str, Any]:
        """Return `Proxy.state`."""
        state: dict[str, Any] = self.call(self.running.state)
        return state

    def _running(self) -> AbstractAsyncContextManager[Proxy]:
        return Proxy(self.config, self._trace)

    def _new_control(self, host: str, port: int, token: str | None) -> FaultControl:
        # The import of aiohttp takes nearly as long as all others, and few need it.
        from purgatory.proxy.control import new_control

        return new_control(self.running, host, port, token)
