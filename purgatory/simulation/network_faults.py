"""The faults in force, and what the simulated network alone does with them."""

from __future__ import annotations

from purgatory.kafka.faults.active_faults import FaultsInForce
from purgatory.simulation.scenario_faults import LoseRequests


class NetworkFaults(FaultsInForce):
    """The faults in force as the ways between clients and brokers see them."""

    def loses_request(self, broker: int, api: str, client_id: str) -> bool:
        """Whether the network loses a request on its way; it counts as a strike."""
        return any(
            isinstance(begun.fault, LoseRequests)
            and self._strikes(begun, begun.fault, broker, api, client_id)
            for begun in list(self.active)
        )
