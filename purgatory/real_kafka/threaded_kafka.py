"""A real Kafka beside a program that blocks: tests, scripts, notebooks.

    with ThreadedRealKafka(find_kafka("4.3.1"), ClusterConfig(brokers=1)) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        with kafka.fault.lose_responses(api="Produce", count=1):
            ...

Ground rules: those of `threaded_cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from purgatory.cluster.config import ClusterConfig
from purgatory.cluster.steering.waits import Timeout, Wait
from purgatory.cluster.threaded_cluster import (
    ThreadedFault,
    ThreadedFaults,
    ThreadedLoop,
    ThreadedWaits,
)
from purgatory.cluster.trace import ClusterTrace
from purgatory.kafka.faults import Fault
from purgatory.real_kafka.cluster import STARTS_S, RealKafka
from purgatory.real_kafka.jars import KafkaFiles
from purgatory.real_kafka.settings import OnlyOursError, check_config
from purgatory.settings.problems import no_such_attribute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from purgatory.cluster.control.control import FaultControl

OnOnlyOurs = Callable[[OnlyOursError], NoReturn]
"""Is called where a real Kafka can't do something, in place of an error: a test is skipped."""


@contextmanager
def told_by(on_only_ours: OnOnlyOurs | None) -> Iterator[None]:
    """Call a function where a real Kafka can't do something."""
    try:
        yield
    except OnlyOursError as error:
        if on_only_ours is None:
            raise
        on_only_ours(error)


class ThreadedRealKafka(ThreadedLoop[RealKafka]):
    """Runs a real Kafka beside blocking code, with the methods of `ThreadedCluster`.

    Args:
        files: those of Kafka.
        config: the configuration; by default three brokers on ports that the system chooses.
        trace: records requests and responses.
        recorded: keep the trace in memory, for `audit`, in place of `trace`.
        on_only_ours: is called with an `OnlyOursError`; None: it is raised.

    Raises:
        OnlyOursError: the configuration is only for a cluster of this library.
    """

    start_timeout_s: ClassVar[float] = 2 * STARTS_S

    def __init__(
        self,
        files: KafkaFiles,
        config: ClusterConfig | None = None,
        trace: ClusterTrace | None = None,
        recorded: bool = False,
        on_only_ours: OnOnlyOurs | None = None,
    ) -> None:
        super().__init__("cluster", trace, recorded)
        self.config = config or ClusterConfig()
        self.files = files
        self._on_only_ours = on_only_ours
        self.fault = _RealThreadedFaults(self, on_only_ours)
        self.wait_for = _RealThreadedWaits(self, on_only_ours)
        with told_by(on_only_ours):
            check_config(self.config)

    def __repr__(self) -> str:
        state = "not started" if self._served is None else self._served.bootstrap_servers
        return f"<{type(self).__name__} {self.files.version} {state}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name in _ONLY_OURS:
            with told_by(self._on_only_ours):
                raise OnlyOursError(name, _ONLY_OURS[name])
        raise no_such_attribute(self, name)

    def bootstrap_servers_of(self, listener: str) -> str:
        """Return the bootstrap servers of another listener.

        Raises:
            ClusterError: there is no listener of that name.
        """
        return self._started_one().bootstrap_servers_of(listener)

    def state(self) -> dict[str, Any]:
        """Return `RealKafka.cluster_state`."""
        state: dict[str, Any] = self.call(self.running.cluster_state)
        return state

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int | None = None,
        settings: Mapping[str, str | timedelta] | None = None,
    ) -> None:
        """Create a topic. Its settings in milliseconds may be timedeltas.

        Raises:
            ClusterError: the name is taken or invalid, or a count or a setting is invalid.
        """
        create = self.running.create_topic
        self.call(partial(create, name, partitions, replication, settings))

    def settle(self) -> None:
        """End all faults, revive dead brokers, and return when all brokers know each other."""
        self.fault.end_all()
        self.call(self.running.settle)

    def _running(self) -> AbstractAsyncContextManager[RealKafka]:
        return RealKafka(self.files, self.config, self._trace)

    def _new_control(self, host: str, port: int, token: str | None) -> FaultControl:
        # The import of aiohttp takes nearly as long as all others, and few need it.
        from purgatory.proxy.control import new_control

        return new_control(self.running, host, port, token)


_ONLY_OURS: Mapping[str, str] = {
    "move": "Kafka's own tools move leaders, and nothing moves a coordinator",
    "add_broker": "its brokers are those of its start",
    "remove_broker": "its brokers are those of its start",
}
"""The methods of `ThreadedCluster` that it lacks, and why."""


class _RealThreadedWaits(ThreadedWaits):
    """The waits for requests and faults, for blocking code."""

    def __init__(self, cluster: ThreadedLoop[RealKafka], on_only_ours: OnOnlyOurs | None) -> None:
        super().__init__(cluster)
        self._on_only_ours = on_only_ours

    def _until(self, wait: Wait, timeout: Timeout) -> None:
        with told_by(self._on_only_ours):
            super()._until(wait, timeout)


class _RealThreadedFaults(ThreadedFaults):
    """The methods of `RealFaults`, for blocking code."""

    def __init__(self, cluster: ThreadedLoop[RealKafka], on_only_ours: OnOnlyOurs | None) -> None:
        super().__init__(cluster)
        self._on_only_ours = on_only_ours

    def _begin(self, fault: Fault) -> ThreadedFault:
        with told_by(self._on_only_ours):
            return super()._begin(fault)
