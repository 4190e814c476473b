"""A cluster of brokers in one process: they share the event loop and a controller.

Ground rules
------------
* Everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Self

from purgatory.cluster.api import answer
from purgatory.cluster.broker import Broker
from purgatory.cluster.cluster_config import ClusterConfig
from purgatory.cluster.cluster_metadata import ClusterMetadata
from purgatory.cluster.cluster_trace import ClusterTrace
from purgatory.cluster.fault_injection import Faults
from purgatory.core.fault_log import Logger
from purgatory.kafka.errors import ClusterError

_UNSAVED_EPOCHS = 1_000_000
"""What a log's epoch is beyond this was not made by elections: `cluster.json` may be an older one,
put back by somebody, or by a file system after the loss of power, and that must not cost records.
"""
_IDLE_LOOKS = 10
"""How often it is looked for idle connections in the shortest time that one may be idle."""

_log = Logger("purgatory.cluster")


class Cluster(ClusterMetadata):
    """Brokers, the controller, and what lies between them.

    ``async with Cluster(config) as cluster`` starts and stops it.

    Args:
        config: what it is to be.
        trace: takes down what happens.
    """

    def __init__(
        self, config: ClusterConfig | None = None, trace: ClusterTrace | None = None
    ) -> None:
        super().__init__(config or ClusterConfig(), trace)
        first_port = self.config.first_port
        self.brokers: Mapping[int, Broker] = {
            broker_id: Broker(self, broker_id, first_port and first_port + broker_id - 1, answer)
            for broker_id in range(1, self.config.brokers + 1)
        }
        self.fault = Faults(self)
        self.controller.bars_from_isr = self.fault.bars_from_isr
        self.controller.on_topic_deleted = self._forget_topic
        self._chores: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls: ssl.SSLContext | None = None
        self._stopped = False
        self._reviving: set[int] = set()

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Start all brokers, and make the topics.

        Raises:
            ClusterError: a broker can't listen, or the data folder can't be used.
        """
        self._tls = tls
        try:
            self._load_metadata()
            for broker in self.brokers.values():
                await broker.load_logs(_UNSAVED_EPOCHS)
            self._take_stock(self.brokers)
            for broker in self.brokers.values():
                await broker.start(tls)
        except BaseException:
            await self.stop()
            raise
        self.controller.elect_preferred()
        for topic in self.config.topics:
            if topic.name in self.controller.topics:
                continue  # from the data folder
            self.controller.create_topic(
                topic.name, topic.partitions, topic.replication or self.default_replication
            )
        loop = asyncio.get_running_loop()
        self._chores = [
            loop.create_task(self._do_chores()),
            loop.create_task(self._cut_idle_connections()),
        ]

    def _take_stock(self, coming: Collection[int]) -> None:
        """Take brokers whose logs lack something out of the ISRs, before they come up."""
        self.controller.take_stock(
            {
                broker_id: broker.log_ends()
                for broker_id, broker in self.brokers.items()
                if broker.alive or broker_id in coming
            }
        )

    def _note_committed(self) -> bool:
        """Note how far the leaders' logs are acknowledged; say whether that is further than before.

        What is noted is saved with the next change.
        """
        managers = {one.broker_id: one.manager for one in self.brokers.values() if one.alive}
        return self.controller.note_committed(managers)

    def _forget_topic(self, topic: str) -> None:
        for broker in self.brokers.values():
            if not broker.alive:
                broker.forget_topic(topic)

    async def stop(self) -> None:
        """Stop everything."""
        self._stopped = True
        for chore in self._chores:
            chore.cancel()
        if self._chores and self.config.data_dir is not None and self._note_committed():
            self._save_metadata()
        self.fault.forget_all()
        for task in list(self._tasks):
            task.cancel()
        for broker in self.brokers.values():
            await broker.kill()
        if self._lock is not None:
            self._lock.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    # Looking.

    @property
    def bootstrap_servers(self) -> str:
        """What a client is given: "127.0.0.1:9092,127.0.0.1:9093"."""
        return ",".join(f"{broker.host}:{broker.port}" for broker in self.brokers.values())

    # Brokers that go and come; `fault` does it for users.

    async def kill(self, broker_id: int, lost_records: int = 0) -> None:
        """Kill a broker, and have the controller notice.

        Of each of its logs the last ``lost_records`` are gone when it comes back.
        """
        self._note_committed()
        await self.brokers[broker_id].kill()
        self.brokers[broker_id].lost_records = lost_records
        self.controller.broker_down(broker_id)

    async def revive(self, broker_id: int) -> None:
        """Start a broker that was killed.

        Raises:
            ClusterError: it is just being started, it can't listen, or the cluster was stopped.
        """
        if broker_id in self._reviving:
            raise ClusterError(f"broker {broker_id} is just being started")
        self._reviving.add(broker_id)
        try:
            broker = self.brokers[broker_id]
            await broker.load_logs()
            if self._stopped:
                raise ClusterError("the cluster was stopped")
            self._take_stock([broker_id])
            await broker.start(self._tls)
        except ClusterError:
            self.controller.broker_down(broker_id)  # it was up for as long as it tried to listen
            raise
        finally:
            self._reviving.discard(broker_id)

    def revive_soon(self, broker_id: int) -> None:
        """As ``revive``, for callers that can't wait for it: an error is logged."""
        task = asyncio.get_running_loop().create_task(self._revive_or_log(broker_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _revive_or_log(self, broker_id: int) -> None:
        try:
            await self.revive(broker_id)
        except ClusterError as error:
            _log.error("not_revived", broker=broker_id, reason=str(error))

    async def _do_chores(self) -> None:
        """What a broker does from time to time."""
        while True:
            await asyncio.sleep(self.config.replica_max_lag_ms / 2_000)
            if self.config.data_dir is not None and (self._note_committed() or self._unsaved):
                self._save_metadata()
            now_ms = time.time_ns() // 1_000_000
            for broker in self._brokers_at_work():
                broker.apply_retention(now_ms)
                await asyncio.sleep(0)  # with thousands of partitions either takes milliseconds
                broker.shrink_isrs()
                await asyncio.sleep(0)

    async def _cut_idle_connections(self) -> None:
        limits = self.config.limits
        while True:
            await asyncio.sleep(min(limits.frame_s, limits.idle_s) / _IDLE_LOOKS)
            for broker in self._brokers_at_work():
                broker.cut_idle_connections()

    def _brokers_at_work(self) -> list[Broker]:
        """The brokers that do something: one that is paused does not even drop who lags."""
        return [one for one in self.brokers.values() if not self.fault.is_paused(one.broker_id)]
