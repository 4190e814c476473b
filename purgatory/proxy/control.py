"""The control of a proxy, and what its page shows: requests by API, connections, faults.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from purgatory.cluster.control.control import FaultControl
from purgatory.cluster.control.live_feed import LiveModel, fault_list
from purgatory.cluster.control.live_purgatory import FeedBatch
from purgatory.cluster.observer import observe_faults
from purgatory.proxy.addresses import ProxiedBroker
from purgatory.trace import change_rows as rows
from purgatory.trace.observer import StateObserver

if TYPE_CHECKING:
    from purgatory.proxy.proxy import Proxy


class ProxyControl(FaultControl):
    """Serves the control of a proxy.

    Args:
        proxy: which.
        host, port, token: as `FaultControl` has them.
    """

    def __init__(
        self, proxy: Proxy, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> None:
        def new_model(batch: FeedBatch, _: object) -> ProxyModel:
            return ProxyModel(proxy, batch)

        super().__init__(proxy.fault, proxy.state, new_model, "proxy", host, port, token)


class ProxyModel(LiveModel):
    """The state of a proxy as sent to viewers.

    Args:
        proxy: which.
        batch: takes the changes.
    """

    def __init__(self, proxy: Proxy, batch: FeedBatch) -> None:
        super().__init__(batch)
        self._proxy = proxy
        self._brokers = {
            broker_id: LiveProxiedBroker(broker_id, broker, batch)
            for broker_id, broker in proxy.all_brokers.items()
        }
        self._observer = StateObserver(lambda _, *change: self._record_fault(*change))

    async def begin(self) -> None:
        self._observe_faults()
        self._batch.end()  # what was recorded so far is part of the state

    def release(self) -> None:
        """Nothing is observed between two comparisons."""

    def compare(self) -> None:
        """Record what has changed. O(brokers * APIs)."""
        for broker in self._brokers.values():
            broker.compare()
        self._observe_faults()

    def is_stale(self) -> bool:
        brokers = self._proxy.all_brokers
        return self._brokers.keys() != brokers.keys() or any(
            one.address != str(brokers[broker_id].address)
            for broker_id, one in self._brokers.items()
        )

    def report_brokers(self) -> None:
        for broker_id, broker in self._proxy.all_brokers.items():
            if broker_id not in self._brokers:
                self._batch.log(f"broker {broker_id} is at {broker.address}")

    def state(self) -> dict[str, Any]:
        return {
            "at_us": self._batch.begin_us,
            "brokers": [broker.state() for broker in self._brokers.values()],
            "operations": [],
            **self.counts(),
            "topics": [],
            "groups": [],
            "transactions": [],
            "faults": fault_list(self._observer.last_values[rows.FAULT]),
            "unknown": ["topics", "groups", "transactions", "wheels", "request_traces"],
        }

    def _observe_faults(self) -> None:
        observe_faults(self._observer, self._proxy.fault, self._batch.clock)


class LiveProxiedBroker:
    """Observes a broker behind the proxy.

    Args:
        broker_id: the id that it is shown by.
        broker: the broker.
        batch: collects the changes.
    """

    def __init__(self, broker_id: int, broker: ProxiedBroker, batch: FeedBatch) -> None:
        self._id = broker_id
        self._broker = broker
        self._batch = batch
        self.address = str(broker.address)
        self._connections = len(broker.connections)
        self._requests = Counter(broker.requests)

    def compare(self) -> None:
        """Report changes."""
        for api, count in self._broker.requests.items():
            if new := count - self._requests[api]:
                outcomes = {"requests": new}
                self._add("settled_many", purgatory=api, outcomes=outcomes, pending=0)
        self._requests = Counter(self._broker.requests)
        if len(self._broker.connections) != self._connections:
            self._connections = len(self._broker.connections)
            self._add("broker", alive=True, connections=self._connections)

    def state(self) -> dict[str, Any]:
        """Return the reported state."""
        return {
            "id": self._id,
            "alive": True,
            "address": self.address,
            "listener": str(self._broker.endpoint),
            "connections": self._connections,
            "wheel": None,
            "purgatories": [
                {"name": api, "pending": 0, "outcomes": {"requests": count}}
                for api, count in self._requests.items()
            ],
        }

    def _add(self, change: str, **values: Any) -> None:
        self._batch.add(change, broker=self._id, **values)
