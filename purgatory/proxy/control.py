"""The control of a proxy, and the model of its page: requests by API, connections, faults.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from purgatory.cluster.control.control import FaultControl
from purgatory.cluster.control.live_feed import LiveModel, fault_list
from purgatory.cluster.control.live_purgatory import FeedBatch
from purgatory.cluster.control.request_routes import RequestRoutes
from purgatory.cluster.observer import observe_faults
from purgatory.trace import change_rows as rows
from purgatory.trace.observer import StateObserver

if TYPE_CHECKING:
    from purgatory.proxy.faults import ProxyFaults


class Proxied(Protocol):
    """A proxy, or brokers behind several ones."""

    @property
    def fault(self) -> ProxyFaults:
        """The faults."""

    def state(self) -> dict[str, Any]:
        """Return the brokers and the latest faults, as plain data."""


def new_control(proxy: Proxied, host: str, port: int, token: str | None) -> FaultControl:
    """Return the control of a proxy; the other arguments are as `FaultControl` has them."""
    new_model = partial(ProxyModel, proxy)
    routes = RequestRoutes(proxy.fault.passed)
    return FaultControl(proxy.fault, proxy.state, new_model, routes, "proxy", host, port, token)


class ProxyModel(LiveModel):
    """The state of a proxy as sent to viewers.

    Args:
        proxy: the proxy.
        batch: collects the changes.
    """

    def __init__(self, proxy: Proxied, batch: FeedBatch, _: object = None) -> None:
        super().__init__(batch)
        self._proxy = proxy
        self._brokers = proxy.state()["brokers"]
        self._observer = StateObserver(lambda _, *change: self._record_fault(*change))
        self._observe_faults()
        batch.end()  # changes so far are part of the state

    def compare(self) -> None:
        """Record the changes. O(brokers * APIs)."""
        known, self._brokers = self._brokers, self._proxy.state()["brokers"]
        for before, now in zip(known, self._brokers, strict=True):
            for api, count in now["requests"].items():
                if new := count - before["requests"].get(api, 0):
                    self._batch.add(
                        "completed_many",
                        broker=now["id"],
                        purgatory=api,
                        outcomes={"requests": new},
                        pending=0,
                    )
            if (now["connections"], now.get("alive")) != (
                before["connections"],
                before.get("alive"),
            ):
                connections = now["connections"]
                alive = now.get("alive", True)
                self._batch.add("broker", broker=now["id"], alive=alive, connections=connections)
        self._observe_faults()

    def is_stale(self) -> bool:
        return _addresses(self._brokers) != _addresses(self._proxy.state()["brokers"])

    def report_brokers(self) -> None:
        known = _addresses(self._brokers)
        for broker_id, address in _addresses(self._proxy.state()["brokers"]).items():
            if broker_id not in known:
                self._batch.log(f"broker {broker_id} is at {address}")

    def state(self) -> dict[str, Any]:
        brokers = [
            {
                "alive": True,
                **broker,
                "wheel": None,
                "purgatories": [
                    {"name": api, "pending": 0, "outcomes": {"requests": count}}
                    for api, count in broker["requests"].items()
                ],
            }
            for broker in self._brokers
        ]
        return {
            "at_us": self._batch.begin_us,
            "brokers": brokers,
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


def _addresses(brokers: list[dict[str, Any]]) -> dict[int, str]:
    return {broker["id"]: broker["address"] for broker in brokers}
