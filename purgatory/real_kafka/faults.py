"""The faults of a real Kafka's brokers: those of a proxy, and signals to their processes.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol

from purgatory.cluster.fault_injection import FaultTarget
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import Fault, Kill, Pause
from purgatory.kafka.faults.active_faults import ActiveFault
from purgatory.proxy.addresses import TopicIds
from purgatory.proxy.faults import ProxyFaults
from purgatory.proxy.trace import ProxyTrace
from purgatory.real_kafka.settings import OnlyOursError

_REPLICATION = "its brokers replicate past the proxy"
REFUSALS: Mapping[str, str] = {
    "stall_follower": _REPLICATION,
    "slow_follower": _REPLICATION,
    "shrink_isr": _REPLICATION,
    "cut_link": _REPLICATION,
    "jump_clock": "its brokers have the machine's clock",
}
"""The kinds of faults that a real Kafka doesn't have, and why."""


class BrokerTarget(FaultTarget, Protocol):
    """The brokers that get signals."""

    def is_alive(self, broker_id: int) -> bool:
        """Whether a broker's process is there."""

    async def kill(self, broker_id: int) -> None:
        """Kill a broker, and cut its clients' connections."""

    async def revive(self, broker_id: int) -> None:
        """Start a broker that was killed."""

    def revive_soon(self, broker_id: int) -> None:
        """As ``revive``, without waiting."""

    def pause(self, broker_id: int) -> None:
        """Stop a broker's process."""

    def resume(self, broker_id: int) -> None:
        """Continue it."""


class RealFaults(ProxyFaults):
    """Injects faults into a real Kafka's brokers, and lists the active ones.

    Args:
        target: the brokers.
        topics: the topics of responses.
        recorder: records requests and responses; None: there is no trace.
    """

    refusals = REFUSALS

    def __init__(
        self, target: BrokerTarget, topics: TopicIds, recorder: ProxyTrace | None = None
    ) -> None:
        super().__init__(target, topics, recorder)
        self._brokers = target

    def _not_here(self, kind: str, reason: str) -> ClusterError:
        return OnlyOursError(kind, reason)

    def _check(self, fault: Fault) -> None:
        super()._check(fault)
        if isinstance(fault, Kill) and fault.lost_records:
            raise OnlyOursError(
                f"lost_records={fault.lost_records}", "its brokers keep what they stored"
            )
        if isinstance(fault, Kill | Pause) and not self._brokers.is_alive(fault.broker):
            raise ClusterError(f"broker {fault.broker} is dead already")

    async def begin(self, fault: Fault) -> ActiveFault:
        if isinstance(fault, Kill):
            self._check(fault)
            await self._brokers.kill(fault.broker)
            return self._begin_fault(fault)
        return await super().begin(fault)

    def _begin(self, fault: Fault) -> ActiveFault:
        active_fault = super()._begin(fault)
        if isinstance(fault, Pause):
            self._brokers.pause(fault.broker)
        return active_fault

    async def kill(
        self, broker: int, *, lost_records: int = 0, for_s: float | timedelta | None = None
    ) -> ActiveFault:
        """Kill a broker's process; it is started again when the fault ends."""
        return await self.begin(Kill(broker, lost_records=lost_records, for_s=for_s))

    async def revive(self, broker: int) -> None:
        self._check_broker(broker)
        if self._brokers.is_alive(broker):
            raise ClusterError(f"broker {broker} lives")
        for active_fault in list(self.active):
            if isinstance(active_fault.fault, Kill) and active_fault.fault.broker == broker:
                active_fault.forget()
                super()._on_end(active_fault)
        await self._brokers.revive(broker)

    def _on_end(self, active_fault: ActiveFault) -> None:
        super()._on_end(active_fault)
        fault = active_fault.fault
        if isinstance(fault, Kill):
            self._brokers.revive_soon(fault.broker)
        if isinstance(fault, Pause) and not self.is_paused(fault.broker):
            self._brokers.resume(fault.broker)
