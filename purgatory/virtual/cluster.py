"""A cluster in a world: the one that sockets reach, with its brokers as nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from purgatory.cluster import Cluster, ClusterConfig, ClusterTrace, TopicSpec
from purgatory.cluster.protocol.connection import UnboundedScheduler
from purgatory.cluster.storage import REAL_DISK
from purgatory.kafka.errors import ClusterError
from purgatory.trace.rows_in_memory import RowsInMemory
from purgatory.virtual.clocks import US_PER_S
from purgatory.virtual.disk import DiskVolume, VirtualDisk
from purgatory.virtual.errors import WorldError
from purgatory.virtual.network import VirtualNetwork

if TYPE_CHECKING:
    from purgatory.pipeline.jobs.audit.client_settings import RunConfiguration
    from purgatory.pipeline.jobs.audit.findings import Findings


_FIRST_PORT = 9092
_DATA_DIR: Final = Path("/purgatory")
"""Where a cluster's folder is on a disk in memory."""


class Recorded(NamedTuple):
    """How much a cluster has recorded of its clients.

    Args:
        sent: attempts to send a record, with those that were refused or got no response.
        acknowledged: those whose client was told that the record is there.
        read: records that were delivered.
    """

    sent: int
    acknowledged: int
    read: int


class WorldCluster(Cluster):
    """`Cluster`, which notes in memory what happens. Its brokers are nodes: "broker 1".

    Args:
        network: of the world.
        config: what it is to be.
        disk: on which its data folder is; None: on the machine's, if it has one.
    """

    def __init__(
        self, network: VirtualNetwork, config: ClusterConfig, disk: VirtualDisk | None = None
    ) -> None:
        self._rows = RowsInMemory()
        self._network = network
        self._recording = ClusterTrace(self._rows, operations=False, texts=self._rows.texts)
        self._virtual_disk = disk
        super().__init__(config, self._recording, REAL_DISK if disk is None else disk)
        clock = network.clock
        self.rounds = UnboundedScheduler(lambda: clock.now_us / US_PER_S)
        if disk is not None:
            disk.give_power()
            for broker in self.brokers.values():
                assert broker.logs.folder is not None
                disk.add_volume(broker.logs.folder)

    def name_brokers(self) -> None:
        """Tell the network which broker listens where."""
        for broker_id, broker in self.brokers.items():
            for listener in self.config.all_listeners:
                place = broker.place(listener)
                self._network.name((place.host, place.port), f"broker {broker_id}")

    @property
    def has_virtual_disk(self) -> bool:
        """Whether its disk is one in memory."""
        return self._virtual_disk is not None

    @property
    def virtual_disk(self) -> VirtualDisk:
        """Its disk in memory. `World.cluster` can be given it, to start from what is left there.

        Raises:
            WorldError: it has none.
        """
        if self._virtual_disk is None:
            raise WorldError("this cluster has no disk in memory: world.cluster(disk=True)")
        return self._virtual_disk

    def disk(self, broker_id: int | None = None) -> DiskVolume:
        """Return a broker's part of the disk; None: what the cluster has beside its brokers', its
        metadata.

        Raises:
            WorldError: there is no such broker, or no disk in memory.
        """
        disk = self.virtual_disk
        if broker_id is None:
            return disk.volume(_DATA_DIR)
        if broker_id not in self.brokers:
            known = ", ".join(map(str, self.brokers))
            raise WorldError(f"there is no broker {broker_id!r}; there are {known}")
        folder = self.brokers[broker_id].logs.folder
        assert folder is not None
        return disk.volume(folder)

    async def cut_power(self, broker_id: int | None = None, *, for_s: float | None = None) -> None:
        """Kill a broker, and have its disk lose what was not forced onto it.

        Args:
            broker_id: which one; one that is dead loses what it wrote before. None: everything at
                one moment. This cluster is stopped then; start another one from `virtual_disk`.
            for_s: after how long the broker is revived; None: whenever somebody does it.

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
    ) -> Findings:
        """Audit what clients sent and read so far: order, duplicates and losses.

        Raises:
            SessionError: DuckDB is not installed (the extra `analysis`).
        """
        from purgatory.pipeline.engines.duckdb.audit import audit_arrow
        from purgatory.pipeline.jobs.audit.anomalies import AUDIT_TABLES

        return audit_arrow(
            "cluster",
            self._tables(AUDIT_TABLES),
            configuration,
            expect=expect,
            witnesses=witnesses,
            texts=self._rows.texts,
        )

    def recorded(self) -> Recorded:
        """Say how much there is for an audit so far. O(what was sent)."""
        tables = self._tables(("sends", "reads"))
        sends = tables["sends"].select(["outcome", "acks"]).to_pylist()
        told = [one for one in sends if one["outcome"] == "ok" and one["acks"] != 0]
        return Recorded(len(sends), len(told), tables["reads"].num_rows)

    def _tables(self, names: Sequence[str]) -> Mapping[str, Any]:
        return self._rows.tables("cluster", names, self._recording.held_back())


def world_config(
    brokers: int,
    topics: Mapping[str, int] | Iterable[str],
    more: Mapping[str, Any],
    on_disk: bool = False,
) -> ClusterConfig:
    """Return what a cluster is to be.

    Args:
        brokers: how many.
        topics: their names, with how many partitions each has.
        more: whatever else `ClusterConfig` takes.
        on_disk: whether its folder is to be on a disk in memory.

    Raises:
        ClusterError: ``config`` and something that it has were given, or a folder beside the disk.
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
            raise ClusterError("world.cluster(config=...) has it all: give nothing else with it")
        config: ClusterConfig = more["config"]
        return replace(config, brokers=brokers, topics=[*config.topics, *specs])
    return ClusterConfig(brokers=brokers, topics=specs, first_port=_FIRST_PORT, **more)
