"""A cluster in a virtual world: the one that sockets reach, with its brokers as nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from purgatory.cluster import Cluster, ClusterConfig, ClusterTrace, TopicSpec
from purgatory.kafka.errors import ClusterError
from purgatory.trace.rows_in_memory import RowsInMemory
from purgatory.virtual.virtual_network import VirtualNetwork

if TYPE_CHECKING:
    from purgatory.analysis.auditing.client_configuration import RunConfiguration
    from purgatory.analysis.findings import Findings

_FIRST_PORT = 9092


class WorldCluster(Cluster):
    """`Cluster`, which notes in memory what happens. Its brokers are nodes: "broker 1".

    Args:
        network: of the world.
        config: what it is to be.
    """

    def __init__(self, network: VirtualNetwork, config: ClusterConfig) -> None:
        self._rows = RowsInMemory()
        self._network = network
        self._recording = ClusterTrace(self._rows)
        super().__init__(config, self._recording)

    def name_brokers(self) -> None:
        """Tell the network which broker listens where."""
        for broker_id, broker in self.brokers.items():
            for listener in self.config.all_listeners:
                place = broker.place(listener)
                self._network.name((place.host, place.port), f"broker {broker_id}")

    def audit(
        self,
        configuration: RunConfiguration | None = None,
        *,
        expect: Sequence[str] = (),
        witnesses: int = 10,
    ) -> Findings:
        """Audit what clients sent and read so far: order, duplicates and losses.

        Raises:
            SessionError: DuckDB is not installed (the extra `analysis`).
        """
        from purgatory.analysis.auditing.audited_tables import AUDITED
        from purgatory.analysis.duckdb_engine.audit_memory import audit_arrow

        tables = self._rows.tables("cluster", AUDITED, self._recording.held_back())
        return audit_arrow(tables, configuration, expect=expect, witnesses=witnesses)


def world_config(
    brokers: int, topics: Mapping[str, int] | Iterable[str], more: Mapping[str, Any]
) -> ClusterConfig:
    """Return what a cluster is to be.

    Raises:
        ClusterError: ``config`` and something that it has were given.
    """
    partitions = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
    specs = [TopicSpec(name, count) for name, count in partitions.items()]
    if "config" in more:
        if len(more) > 1:
            raise ClusterError("world.cluster(config=...) has it all: give nothing else with it")
        config: ClusterConfig = more["config"]
        return replace(config, brokers=brokers, topics=[*config.topics, *specs])
    return ClusterConfig(brokers=brokers, topics=specs, first_port=_FIRST_PORT, **more)
