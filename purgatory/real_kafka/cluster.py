"""A real Kafka on this machine, behind a proxy for each of its listeners.

    async with RealKafka(find_kafka("4.3.1"), ClusterConfig(brokers=3)) as kafka:
        print(kafka.bootstrap_servers)

Ground rules: everything happens on the event loop's thread, but the calls of `BrokerProcesses`,
which block: they are made on others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Self

from purgatory.cluster.api.registry import APIS
from purgatory.cluster.config import ClusterConfig
from purgatory.cluster.listeners import Endpoint
from purgatory.cluster.steering.request_methods import RequestMethods
from purgatory.cluster.trace import ClusterTrace
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ClusterError, KafkaError
from purgatory.kafka.settings.topic_settings import validate_settings
from purgatory.proxy.addresses import ProxiedBroker, TopicIds
from purgatory.proxy.proxy import Proxy, ProxyConfig
from purgatory.proxy.trace import ProxyTrace
from purgatory.real_kafka.admin import Admin, PartitionOffsets
from purgatory.real_kafka.faults import RealFaults
from purgatory.real_kafka.jars import KafkaFiles
from purgatory.real_kafka.processes import BrokerProcesses
from purgatory.real_kafka.settings import HOST, check_config

_log = Logger("purgatory.real_kafka")
_LOOKS_S = 0.05
STARTS_S = 120.0
"""The longest start of the brokers, on a machine that does other work, too."""

_MAX_REPLICATION = 3


class RealBroker:
    """A broker, as its faults see it: a process, and a listener of each proxy."""

    def __init__(self, listeners: Sequence[ProxiedBroker]) -> None:
        self.listeners = listeners

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.listeners[0].endpoint}>"

    def cut_connections(self) -> int:
        """Cut all clients' connections, and return how many there were."""
        return sum(listener.cut_connections() for listener in self.listeners)


class RealKafka(RequestMethods):
    """Brokers in processes of their own, as a context manager on an event loop.

    Args:
        files: those of Kafka.
        config: the configuration; what a real Kafka can't do is refused.
        trace: records requests and responses.

    Raises:
        OnlyOursError: the configuration is only for a cluster of this library.
    """

    def __init__(
        self,
        files: KafkaFiles,
        config: ClusterConfig | None = None,
        trace: ClusterTrace | None = None,
    ) -> None:
        self.config = config or ClusterConfig()
        check_config(self.config)
        self.apis = APIS
        self.files = files
        self._processes = BrokerProcesses(files, self.config)
        topics = TopicIds()
        recorder = None if trace is None else ProxyTrace(trace, topics)
        self.fault = RealFaults(self, topics, recorder)
        self.request_log = self.fault.passed.request_log
        self.hooks, self.wait_for = self.fault.passed.hooks, self.fault.passed.wait_for
        self._proxies = {
            listener.name: Proxy(
                ProxyConfig(
                    to=[
                        str(self._processes.endpoints(broker_id)[number])
                        for broker_id in self.config.broker_ids
                    ],
                    host=listener.host or self.config.host,
                    first_port=listener.first_port,
                    advertised_host=listener.advertised_host or self.config.advertised_host,
                    tls=listener.tls,
                ),
                broker_ids=self.config.broker_ids,
                faults=self.fault,
            )
            for number, listener in enumerate(self.config.all_listeners)
        }
        self.brokers: Mapping[int, RealBroker] = {
            broker_id: RealBroker([proxy.brokers[broker_id] for proxy in self._proxies.values()])
            for broker_id in self.config.broker_ids
        }
        self._admin = Admin(
            {
                broker_id: Endpoint(HOST, ports.internal)
                for broker_id, ports in self._processes.ports.items()
            },
            self._processes.password,
            self._live,
        )
        self._changing = {broker_id: asyncio.Lock() for broker_id in self.config.broker_ids}
        self._ready: set[int] = set()
        """The brokers that have answered since their start."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def __repr__(self) -> str:
        count = len(self.config.broker_ids)
        return f"<{type(self).__name__} {self.files.version}, {count} brokers: {self.fault!r}>"

    # Start and stop.

    async def start(self) -> None:
        """Start all brokers, wait until they answer, and create the topics.

        Raises:
            ClusterError: a port is taken, or a broker does not start.
        """
        try:
            for proxy in self._proxies.values():
                await proxy.start()
            await asyncio.to_thread(self._processes.prepare)
            for broker_id in self.config.broker_ids:
                self._processes.run(broker_id)
            for broker_id in self.config.broker_ids:
                await self._answers(broker_id, len(self.config.broker_ids))
                self._ready.add(broker_id)
            known = {topic.name for topic in (await self._admin.metadata()).topics}
            for topic in self.config.topics:
                if topic.name not in known:  # otherwise the data folder has it
                    await self.create_topic(
                        topic.name, topic.partitions, topic.replication, topic.settings
                    )
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End all brokers, and close all connections."""
        self._stopped = True
        for task in list(self._tasks):
            task.cancel()
        self.fault.forget_all()
        for proxy in self._proxies.values():
            await proxy.stop()
        await asyncio.to_thread(self._processes.stop)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _answers(self, broker_id: int, count: int) -> None:
        """Wait until a broker answers, and knows so many live brokers.

        Raises:
            ClusterError: it does not.
        """
        try:
            async with asyncio.timeout(STARTS_S):
                while True:
                    self._processes.check(broker_id)
                    with suppress(ClusterError):
                        metadata = await self._admin.metadata(broker_id)
                        known = {broker.node_id for broker in metadata.brokers}
                        if broker_id in known and len(known) >= count:
                            return
                    await asyncio.sleep(_LOOKS_S)
        except TimeoutError:
            raise ClusterError(
                f"broker {broker_id} of Kafka did not answer within {STARTS_S:g} s"
            ) from None

    # Addresses.

    @property
    def bootstrap_servers(self) -> str:
        """The ``bootstrap.servers`` of clients."""
        return next(iter(self._proxies.values())).bootstrap_servers

    def bootstrap_servers_of(self, listener: str) -> str:
        """The ``bootstrap.servers`` of a client of another listener.

        Raises:
            ClusterError: there is no listener of that name.
        """
        if listener not in self._proxies:
            known = ", ".join(self._proxies)
            raise ClusterError(f"there is no listener {listener}; there are {known}")
        return self._proxies[listener].bootstrap_servers

    # Signals to brokers, for `fault`.

    def is_alive(self, broker_id: int) -> bool:
        """Whether a broker's process is there, also while it is paused."""
        return self._processes.is_running(broker_id)

    def pid(self, broker_id: int) -> int | None:
        """Return the number of a broker's process, for jstack and the like; None: it is dead."""
        return self._processes.pid(broker_id)

    def _live(self) -> list[int]:
        """The brokers that may answer."""
        return [
            broker_id
            for broker_id in self.config.broker_ids
            if self._is_ready(broker_id) and not self.fault.is_paused(broker_id)
        ]

    def _is_ready(self, broker_id: int) -> bool:
        """Whether a broker lives, and has answered since its start."""
        return broker_id in self._ready and self.is_alive(broker_id)

    async def kill(self, broker_id: int) -> None:
        """Kill a broker's process, and cut its clients' connections.

        One that is being started is killed afterwards.
        """
        async with self._changing[broker_id]:
            self._ready.discard(broker_id)
            await asyncio.to_thread(self._processes.kill, broker_id)
            for proxy in self._proxies.values():
                await proxy.refuse_clients(broker_id)

    async def revive(self, broker_id: int) -> None:
        """Start a broker that was killed, and return when it answers.

        Raises:
            ClusterError: the broker does not start, or the cluster was stopped.
        """
        async with self._changing[broker_id]:
            if self._stopped:
                raise ClusterError("the cluster was stopped")
            if not self.is_alive(broker_id):
                await asyncio.to_thread(self._processes.run, broker_id)
                await self._answers(broker_id, 1)
                self._ready.add(broker_id)
                for proxy in self._proxies.values():
                    await proxy.accept_clients(broker_id)

    def revive_soon(self, broker_id: int) -> None:
        """As ``revive``, without waiting: an error is logged."""
        self._begin_task(self._try_revive(broker_id))

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try_revive(self, broker_id: int) -> None:
        try:
            await self.revive(broker_id)
        except ClusterError as error:
            _log.error("not_revived", broker=broker_id, reason=str(error))

    def pause(self, broker_id: int) -> None:
        """Stop a broker's process."""
        self._processes.pause(broker_id)

    def resume(self, broker_id: int) -> None:
        """Continue a broker's process."""
        self._processes.resume(broker_id)

    async def settle(self) -> None:
        """Revive all dead brokers, and return when every broker knows all others."""
        for broker_id in self.config.broker_ids:
            await self.revive(broker_id)
        for broker_id in self.config.broker_ids:
            await self._answers(broker_id, len(self.config.broker_ids))

    # State and topics.

    def state(self) -> dict[str, Any]:
        """Return the brokers, and the latest faults, as plain data."""
        return {
            "brokers": [
                {
                    "id": broker_id,
                    "address": str(broker.listeners[0].address),
                    "listener": str(broker.listeners[0].endpoint),
                    "alive": self._is_ready(broker_id),
                    "connections": sum(len(one.connections) for one in broker.listeners),
                    "requests": dict(sum((one.requests for one in broker.listeners), Counter())),
                }
                for broker_id, broker in self.brokers.items()
            ],
            "faults": [fault.as_dict() for fault in self.fault.recent],
        }

    async def cluster_state(self) -> dict[str, Any]:
        """Return what `purgatory.cluster.cluster.cluster_state` does; None: not told by Kafka.

        Settings of topics, purgatories and the followers' log ends are missing.
        """
        metadata = await self._admin.metadata()
        offsets = await self._admin.offsets(metadata)
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "elections": None,
            "brokers": [
                {
                    "id": broker_id,
                    "host": broker.listeners[0].endpoint.host,
                    "port": broker.listeners[0].endpoint.port,
                    "alive": self._is_ready(broker_id),
                    "connections": sum(len(one.connections) for one in broker.listeners),
                    "purgatories": [],
                }
                for broker_id, broker in self.brokers.items()
            ],
            "topics": [
                {
                    "name": topic.name,
                    "internal": topic.is_internal,
                    "settings": None,
                    "partitions": [
                        _partition(
                            one,
                            offsets.get((topic.name, one.partition_index), PartitionOffsets()),
                        )
                        for one in sorted(topic.partitions, key=lambda one: one.partition_index)
                    ],
                }
                for topic in metadata.topics
            ],
            "groups": await self._admin.groups(),
            "faults": [fault.as_dict() for fault in self.fault.recent],
        }

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int | None = None,
        settings: Mapping[str, str | timedelta] | None = None,
    ) -> None:
        """Create a topic, and return when its partitions have leaders.

        Raises:
            ClusterError: a setting is invalid, or Kafka refused it.
        """
        try:
            checked = validate_settings(settings or {}, self.config.setting)
        except KafkaError as error:
            raise ClusterError(error.message) from None
        default = self.config.default_replication
        if default is None:
            default = min(self.config.brokers, _MAX_REPLICATION)
        replicas = default if replication is None else replication
        await self._admin.create_topic(name, partitions, replicas, checked)


def _partition(one: Any, offsets: PartitionOffsets) -> dict[str, Any]:
    return {
        "partition": one.partition_index,
        "leader": one.leader_id,
        "leader_epoch": one.leader_epoch,
        "replicas": list(one.replica_nodes),
        "isr": list(one.isr_nodes),
        "high_watermark": offsets.high_watermark,
        "log_end_offsets": None,
        "log_start_offset": offsets.start,
    }
