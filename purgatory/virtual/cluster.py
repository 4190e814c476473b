"""A cluster in a world, with its brokers as nodes of the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from purgatory.cluster import Cluster, ClusterConfig, ClusterTrace, TopicSpec
from purgatory.cluster.protocol.connection import UnboundedScheduler
from purgatory.cluster.storage import REAL_DISK
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import Kill
from purgatory.trace.effects import GivenEffect, TakesEffects
from purgatory.trace.observer import FaultState
from purgatory.trace.rows_in_memory import RowsInMemory
from purgatory.virtual.clocks import INITIAL_UPTIME_US, US_PER_S
from purgatory.virtual.disk import DiskVolume, VirtualDisk
from purgatory.virtual.errors import WorldError
from purgatory.virtual.history import History
from purgatory.virtual.network import VirtualNetwork

if TYPE_CHECKING:
    from purgatory.core.async_purgatory import AsyncPurgatory
    from purgatory.pipeline.jobs.audit.client_settings import RunConfiguration
    from purgatory.pipeline.jobs.audit.findings import Findings


_FIRST_PORT = 9092
_DATA_DIR: Final = Path("/purgatory")
"""The path of a cluster's folder on a disk in memory."""


class RecordCounts(NamedTuple):
    """The numbers of recorded rows.

    Args:
        sent: attempts to send a record, including failed ones.
        acknowledged: attempts that were acknowledged.
        read: records that consumers got.
    """

    sent: int
    acknowledged: int
    read: int


class _WorldTrace(ClusterTrace):
    """A cluster's trace, which also records brokers' deaths and returns in the world's history."""

    def __init__(self, history: History, rows: RowsInMemory) -> None:
        super().__init__(rows, operations=False, texts=rows.texts, forgets=False)
        self._history = history
        self._dead: set[int] = set()

    def record_started(self, broker: int) -> None:
        super().record_started(broker)
        if broker in self._dead:
            self._dead.remove(broker)
            self._history.record("host", f"broker {broker}: restart")

    def record_stopped(
        self, broker: int, purgatories: Iterable[AsyncPurgatory], died: bool
    ) -> None:
        super().record_stopped(broker, purgatories, died)
        if died:
            self._dead.add(broker)
            self._history.record("host", f"broker {broker}: crash")


class WorldCluster(Cluster, TakesEffects):
    """A `Cluster` that records its trace in memory. Its brokers are nodes: "broker 1".

    Args:
        disk: the disk of its data folder; None: the machine's, if it has one.
    """

    def __init__(
        self, network: VirtualNetwork, config: ClusterConfig, disk: VirtualDisk | None = None
    ) -> None:
        self._rows = RowsInMemory()
        self._network = network
        self._recording = _WorldTrace(network.history, self._rows)
        self._virtual_disk = disk
        super().__init__(config, self._recording, REAL_DISK if disk is None else disk)
        clock = network.clock
        self.scheduler = UnboundedScheduler(lambda: clock.now_us / US_PER_S)
        if disk is not None:
            disk.restore_power()
            for broker in self.brokers.values():
                assert broker.logs.folder is not None
                disk.add_volume(broker.logs.folder)

    def name_brokers(self) -> None:
        """Name the brokers' addresses in the network."""
        for broker_id, broker in self.brokers.items():
            for listener in self.config.all_listeners:
                endpoint = broker.endpoint(listener)
                self._network.name((endpoint.host, endpoint.port), f"broker {broker_id}")

    async def add_broker(self) -> int:
        broker_id = await super().add_broker()
        self.name_brokers()
        return broker_id

    def recent_faults(self) -> Sequence[FaultState]:
        """Return the last faults, without the deaths of brokers, which are events of the world."""

        def us_of_s(uptime_s: float) -> int:
            return round(uptime_s * US_PER_S) - INITIAL_UPTIME_US

        states = [FaultState.of(fault, us_of_s) for fault in self.fault.recent]
        return [state for state in states if state.kind != Kill.kind]

    @property
    def has_virtual_disk(self) -> bool:
        """Whether its disk is one in memory."""
        return self._virtual_disk is not None

    @property
    def virtual_disk(self) -> VirtualDisk:
        """Its disk in memory; `World.cluster` can start from it.

        Raises:
            WorldError: it has none.
        """
        if self._virtual_disk is None:
            raise WorldError("this cluster has no disk in memory: world.cluster(disk=True)")
        return self._virtual_disk

    def disk(self, broker_id: int | None = None) -> DiskVolume:
        """Return a broker's volume of the disk; None: the volume of the cluster's metadata.

        Raises:
            WorldError: there is no such broker, or no disk in memory.
        """
        disk = self.virtual_disk
        if broker_id is None:
            return disk.volume(_DATA_DIR)
        if broker_id not in self.brokers:
            broker_ids = ", ".join(map(str, self.brokers))
            raise WorldError(f"there is no broker {broker_id!r}; there are {broker_ids}")
        folder = self.brokers[broker_id].logs.folder
        assert folder is not None
        return disk.volume(folder)

    async def cut_power(
        self, broker_id: int | None = None, *, for_s: float | timedelta | None = None
    ) -> None:
        """Kill a broker, and discard its disk's unforced writes.

        Args:
            broker_id: alive or dead. None: all brokers and the metadata at once. Then the cluster
                is stopped; start another one from `virtual_disk`.
            for_s: seconds, or a timedelta, until the broker is revived; None: by a call alone.

        Raises:
            WorldError: there is no such broker, or no disk in memory.
        """
        if broker_id is None:
            self.virtual_disk.cut_all_power()
            await self.stop()
            return
        volume = self.disk(broker_id)
        while broker_id in self._reviving or self.live_broker(broker_id) is not None:
            if broker_id in self._reviving:
                await self._reviving[broker_id].wait()
            elif for_s is None:
                await self.kill(broker_id)
            else:
                await self.fault.kill(broker_id, for_s=for_s)
        self.virtual_disk.cut_power(volume.path)

    def audit(
        self,
        configuration: RunConfiguration | None = None,
        *,
        expect: Sequence[str] = (),
        witnesses: int = 10,
        effects: Iterable[GivenEffect] | None = None,
    ) -> Findings:
        """Audit the clients' records so far: order, duplicates and losses.

        The arguments are those of `ThreadedCluster.audit`.

        Raises:
            ValueError: an effect is malformed, or its client is unknown.
            SessionError: DuckDB is not installed (the extra `analysis`).
        """
        from purgatory.pipeline.engines.duckdb.audit import audit_arrow
        from purgatory.pipeline.jobs.audit.anomalies import AUDIT_TABLES
        from purgatory.pipeline.jobs.audit.client_settings import observed

        return audit_arrow(
            "cluster",
            self._with_effects("cluster", self._tables(AUDIT_TABLES), effects),
            observed(configuration),
            expect=expect,
            witnesses=witnesses,
            texts=self._rows.texts,
        )

    def record_counts(self) -> RecordCounts:
        """Return the numbers of rows so far. O(sends)."""
        tables = self._tables(("sends", "reads"))
        sends = tables["sends"].select(["outcome", "acks"]).to_pylist()
        acknowledged = [send for send in sends if send["outcome"] == "ok" and send["acks"] != 0]
        return RecordCounts(len(sends), len(acknowledged), tables["reads"].num_rows)

    def _tables(self, names: Sequence[str]) -> Mapping[str, Any]:
        recording = self._recording
        return self._rows.tables(
            "cluster", names, recording.unwritten_rows(), recording.unwritten_reads()
        )


def world_config(
    brokers: int,
    topics: Mapping[str, int] | Iterable[str],
    more: Mapping[str, Any],
    on_disk: bool = False,
) -> ClusterConfig:
    """Return a cluster's configuration.

    Args:
        brokers: how many.
        topics: their names and numbers of partitions.
        more: other parameters of `ClusterConfig`.
        on_disk: whether its folder is on a disk in memory.

    Raises:
        ClusterError: ``config`` and other parameters are given, or a folder and a disk.
    """
    config = _config(brokers, topics, more)
    if not on_disk:
        return config
    if config.data_dir is not None:
        raise ClusterError(
            f"data_dir={str(config.data_dir)!r} and a disk in memory: give one of them"
        )
    return replace(config, data_dir=_DATA_DIR)


def _config(
    brokers: int, topics: Mapping[str, int] | Iterable[str], more: Mapping[str, Any]
) -> ClusterConfig:
    partitions = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
    specs = [TopicSpec(name, count) for name, count in partitions.items()]
    if "config" in more:
        if len(more) > 1:
            raise ClusterError(
                "world.cluster(config=...) takes no other parameters of the configuration"
            )
        config: ClusterConfig = more["config"]
        return replace(config, brokers=brokers, topics=[*config.topics, *specs])
    return ClusterConfig(brokers=brokers, topics=specs, first_port=_FIRST_PORT, **more)
