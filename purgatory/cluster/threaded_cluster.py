"""A cluster on a thread of its own, for programs that block: tests, scripts, notebooks.

    with ThreadedCluster(ClusterConfig(topics=[TopicSpec("orders", 6)])) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        with cluster.fault.lose_responses(broker=1, count=1):
            ...

Ground rules
------------
* The cluster lives on the event loop of a thread, the only one that touches it. Calls are passed to
  the loop (`asyncio.run_coroutine_threadsafe`), and waited for: so the cluster needs no locks.
* A process that is forked from this one has no such thread. There the addresses can be read, and
  calls are refused.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Protocol, Self, TypeVar

from purgatory.cluster.cluster import REMOVAL_TIMEOUT_S, Cluster, cluster_state
from purgatory.cluster.config import ClusterConfig
from purgatory.cluster.fault_injection import FaultMethod, FaultMethods, Served
from purgatory.cluster.own_loop import OwnLoop
from purgatory.cluster.steering.moves import MoveMethods, Moves
from purgatory.cluster.steering.request_hooks import OnRequest, RequestHook
from purgatory.cluster.steering.seen_requests import SeenRequest
from purgatory.cluster.steering.waits import ClusterWaits, Timeout, Wait, WaitMethods
from purgatory.cluster.trace import ClusterTrace
from purgatory.kafka.errors import ClusterError, KafkaError
from purgatory.kafka.faults import CutConnections, Fault, Kill
from purgatory.kafka.faults.active_faults import ActiveFault, Endable
from purgatory.kafka.topics import topic_creation_error
from purgatory.settings.problems import hint_at_arguments, no_such_attribute
from purgatory.trace.effects import TakesEffects

if TYPE_CHECKING:
    from purgatory.cluster.control.control import Control, FaultControl
    from purgatory.pipeline.jobs.audit.client_settings import RunConfiguration
    from purgatory.pipeline.jobs.audit.findings import Findings
    from purgatory.trace.effects import GivenEffect
    from purgatory.trace.rows_in_memory import RowsInMemory


class Steered(Served, Protocol):
    """A cluster or a proxy whose requests are kept: see `RequestMethods`."""

    @property
    def wait_for(self) -> ClusterWaits:
        """The waits."""

    def requests(
        self, *, api: str | None, client_id: str | None, topic: str | None, broker: int | None
    ) -> list[SeenRequest]:
        """Return the latest requests."""

    def clear_requests(self) -> None:
        """Forget the requests so far."""

    def on_request(
        self,
        function: OnRequest,
        *,
        api: str | None,
        client_id: str | None,
        topic: str | None,
        broker: int | None,
        count: int | None,
    ) -> RequestHook:
        """Have a function see requests before the broker."""


AnyServed = TypeVar("AnyServed", bound=Steered)


class ThreadedLoop(TakesEffects, ABC, Generic[AnyServed]):
    """Runs something on the event loop of a thread of its own.

    Args:
        name: its name in errors, such as "cluster".
        trace: records events.
        recorded: record events in memory, for `audit`, in place of `trace`: some hundred bytes for
            each record that is sent or read.
    """

    start_timeout_s: ClassVar[float] = 30.0
    """The longest start."""

    def __init__(
        self, name: str, trace: ClusterTrace | None = None, recorded: bool = False
    ) -> None:
        self._name = name
        self._rows: RowsInMemory | None = None
        if recorded:
            # The import of pyarrow takes a fifth of all imports, and only audits need it.
            from purgatory.trace.rows_in_memory import RowsInMemory

            self._rows = RowsInMemory()
            trace = ClusterTrace(
                self._rows, operations=False, texts=self._rows.texts, forgets=False
            )
        self._trace = trace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()
        self._ended: Future[None] = Future()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"purgatory-{name}", daemon=True)
        self._process_id: int | None = None
        """The process in which it was started."""
        self._controls: list[FaultControl] = []
        self._served: AnyServed | None = None
        self.fault = ThreadedFaults(self)
        self.wait_for = ThreadedWaits(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            __tracebackhide__ = True  # for pytest
            raise no_such_attribute(self, name)

    @property
    def running(self) -> AnyServed:
        """The cluster or proxy itself, to be used on its own thread only: see `call`."""
        self._check_process()
        return self._started_one()

    def _started_one(self) -> AnyServed:
        if self._served is None:
            raise ClusterError(f"the {self._name} was not started")
        return self._served

    @property
    def bootstrap_servers(self) -> str:
        """The ``bootstrap.servers`` of clients."""
        return self._started_one().bootstrap_servers

    @property
    def _is_in_child(self) -> bool:
        return self._process_id not in (None, os.getpid())

    def _check_process(self) -> None:
        if self._is_in_child:
            raise ClusterError(
                f"the {self._name} runs in process {self._process_id}, from which this one was "
                "forked: call it there"
            )

    @abstractmethod
    def _running(self) -> AbstractAsyncContextManager[AnyServed]:
        """Start the cluster or proxy, and stop it in the end, on the loop."""

    @abstractmethod
    def _new_control(self, host: str, port: int, token: str | None) -> FaultControl:
        """Return a control that is not started."""

    def start(self) -> None:
        """Start the thread, and return when clients can connect.

        Raises:
            ClusterError: the start failed.
        """
        self._process_id = os.getpid()
        self._thread.start()
        if not self._started.wait(self.start_timeout_s):
            raise ClusterError(f"the {self._name} did not start within {self.start_timeout_s:g} s")
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def stop(self) -> None:
        """Stop the thread. Idempotent; without effect in a forked process."""
        if self._is_in_child:
            return
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(stopping.set)
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def call(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` on the thread, and return its awaited result.

        Raises:
            ClusterError: the thread does not run, stopped before the response, or runs in the
                process from which this one was forked.
        """
        self._check_process()

        async def call() -> Any:
            result = function()
            return await result if inspect.isawaitable(result) else result

        loop, called = self._loop, call()
        future: Future[Any] = Future()
        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                future = asyncio.run_coroutine_threadsafe(called, loop)
                # A loop that ends drops the calls that it has not begun: they would never complete.
                wait([future, self._ended], return_when=FIRST_COMPLETED)
        if future.done():
            with suppress(CancelledError):
                return future.result()
        called.close()
        raise ClusterError(f"the {self._name} does not run")

    def serve_control(
        self, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> str:
        """Serve the control with its page, until the thread stops.

        Args:
            host, port, token: as `Control` has them.

        Returns:
            The page's address, "http://127.0.0.1:40001/".

        Raises:
            ClusterError: the thread does not run, or the address can't be used.
        """
        address: str = self.call(partial(self._serve_control, host, port, token))
        return address

    async def _serve_control(self, host: str, port: int, token: str | None) -> str:
        control = self._new_control(host, port, token)
        self._controls.append(control)
        await control.start()
        return control.page_url

    def requests(
        self,
        *,
        api: str | None = None,
        client_id: str | None = None,
        topic: str | None = None,
        broker: int | None = None,
    ) -> list[SeenRequest]:
        """Return the latest requests: see `RequestMethods.requests`."""
        found: list[SeenRequest] = self.call(
            lambda: self.running.requests(api=api, client_id=client_id, topic=topic, broker=broker)
        )
        return found

    def clear_requests(self) -> None:
        """Forget the requests so far."""
        self.call(self.running.clear_requests)

    def on_request(
        self,
        function: OnRequest,
        *,
        api: str | None = None,
        client_id: str | None = None,
        topic: str | None = None,
        broker: int | None = None,
        count: int | None = None,
    ) -> ThreadedHook:
        """As `RequestMethods.on_request`; the function is called on the loop's thread."""
        hook: RequestHook = self.call(
            lambda: self.running.on_request(
                function, api=api, client_id=client_id, topic=topic, broker=broker, count=count
            )
        )
        return ThreadedHook(self, hook)

    def forget_recorded(self) -> None:
        """Drop what was recorded and told so far: an audit begins here."""
        self._forget_effects()
        rows, trace = self._rows, self._trace
        if rows is not None and trace is not None:
            self.call(lambda: rows.forget(trace.now_us()))

    def audit(
        self,
        configuration: RunConfiguration | None = None,
        *,
        expect: Sequence[str] = (),
        witnesses: int = 10,
        effects: Iterable[GivenEffect] | None = None,
    ) -> Findings:
        """Audit the sends and reads so far: order, duplicates and losses.

        In this process, without Java; some tenths of a second for 10,000 records. Facts that a
        broker can't see, such as idempotence of a producer, come from `configuration`: without it,
        results that depend on them are indeterminate.

        Args:
            configuration: that of the clients, by client ids and consumer groups.
            expect: `order`, `once`, `no-loss`, `one-writer`: violations even if the settings permit
                them.
            witnesses: the number of cases of each anomaly with their rows.
            effects: the effects of the service, in its order, after those of `applied`: for each
                processed record a tuple of topic, partition and offset, the client's message, or an
                `Effect`. Without any, whether a delivered record was processed is unknown.

        Raises:
            ClusterError: the cluster was not made with `recorded`, or runs in the process from
                which this one was forked.
            ValueError: an effect is invalid, or of an unknown record.
            SessionError: DuckDB is not installed (the extra `analysis`).
        """
        self._check_process()
        rows, trace = self._rows, self._trace
        if rows is None or trace is None:
            raise ClusterError(f"nothing was recorded: {type(self).__name__}(..., recorded=True)")
        from purgatory.pipeline.engines.duckdb.audit import audit_arrow
        from purgatory.pipeline.jobs.audit.anomalies import AUDIT_TABLES
        from purgatory.pipeline.jobs.audit.client_settings import observed

        def tables() -> Mapping[str, Any]:
            return rows.tables(
                self._name, AUDIT_TABLES, trace.unwritten_rows(), trace.unwritten_reads()
            )

        # After the stop, open sends and reads stay open.
        copied = tables() if self._loop is None else self.call(tables)
        return audit_arrow(
            self._name,
            self._with_effects(self._name, copied, effects),
            observed(configuration),
            expect=expect,
            witnesses=witnesses,
            texts=rows.texts,
        )

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=OwnLoop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()
            self._ended.set_result(None)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        async with self._running() as self._served:
            self._started.set()
            try:
                await self._stopping.wait()
            finally:
                self._loop = None
                for control in self._controls:
                    await control.stop()


class ThreadedFault(Endable):
    """An active fault, for blocking code."""

    def __init__(self, cluster: ThreadedLoop[Any], begun: ActiveFault) -> None:
        self._cluster = cluster
        self._begun = begun

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._begun!r}>"

    @property
    def active(self) -> bool:
        """Whether the fault has not ended."""
        return self._begun.active

    @property
    def uses(self) -> int:
        """The number of injections."""
        return self._begun.uses

    @property
    def number(self) -> int:
        """Its number."""
        return self._begun.number

    def end(self) -> None:
        """End the fault. Ending twice has no effect."""
        self._cluster.call(self._begun.end)


@hint_at_arguments(config=ClusterConfig)
class ThreadedCluster(ThreadedLoop[Cluster]):
    """Runs a cluster beside blocking code. Use it as a context manager, or start and stop it.

    Args:
        config: the configuration; by default three brokers on ports that the system chooses.
        trace: records events.
        tls: the TLS context of the first listener, in place of the configured one.
        recorded: record events in memory, for `audit`, in place of `trace`: some hundred bytes for
            each record that is sent or read.

    ``fault`` has the methods of `Faults`, each of which returns a `ThreadedFault`.
    """

    def __init__(
        self,
        config: ClusterConfig | None = None,
        trace: ClusterTrace | None = None,
        tls: ssl.SSLContext | None = None,
        recorded: bool = False,
    ) -> None:
        super().__init__("cluster", trace, recorded)
        self.move = ThreadedMoves(self)
        self.config = config or ClusterConfig()
        self._tls = tls

    # Its interface.

    def _new_control(self, host: str, port: int, token: str | None) -> Control:
        # The import of aiohttp takes nearly as long as all others, and few need it.
        from purgatory.cluster.control.control import Control

        return Control(self.running, host, port, token)

    def __repr__(self) -> str:
        state = "not started" if self._served is None else self._served.bootstrap_servers
        return f"<{type(self).__name__} {state}>"

    def bootstrap_servers_of(self, listener: str) -> str:
        """Return the bootstrap servers of another listener.

        Raises:
            ClusterError: there is no listener of that name.
        """
        return self._started_one().bootstrap_servers_of(listener)

    def state(self) -> dict[str, Any]:
        """Return `cluster_state`."""
        state: dict[str, Any] = self.call(partial(cluster_state, self.running))
        return state

    def add_broker(self) -> int:
        """Start one more broker, and return its id: see `Cluster.add_broker`."""
        broker_id: int = self.call(self.running.add_broker)
        return broker_id

    def remove_broker(
        self, broker_id: int, *, timeout: float | timedelta | None = REMOVAL_TIMEOUT_S
    ) -> None:
        """Move a broker's replicas to others, and stop it: see `Cluster.remove_broker`."""
        self.call(lambda: self.running.remove_broker(broker_id, timeout=timeout))

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

        def create() -> None:
            cluster = self.running
            if name in cluster.controller.topics:
                raise ClusterError(f"topic {name} exists")
            wrong = topic_creation_error(name, cluster.controller.topics)
            if wrong is not None:
                raise ClusterError(wrong)
            replicas = cluster.default_replication if replication is None else replication
            if partitions < 1:
                raise ClusterError(f"{partitions} partitions: a topic has at least 1")
            if not 1 <= replicas <= len(cluster.brokers):
                raise ClusterError(
                    f"{replicas} replicas: from 1 to {len(cluster.brokers)}, as there are brokers"
                )
            try:
                checked = cluster.checked_settings(settings or {})
            except KafkaError as error:
                raise ClusterError(error.message) from None
            cluster.controller.create_topic(name, partitions, replicas, checked)

        self.call(create)

    def settle(self) -> None:
        """End all faults, and revive all dead brokers."""
        self.fault.end_all()
        self.call(self.running.settle)

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[Cluster]:
        cluster = Cluster(self.config, self._trace)
        try:
            await cluster.start(self._tls)
            yield cluster
        finally:
            await cluster.stop()


class ThreadedHook(Endable):
    """A hook that is installed, for blocking code."""

    def __init__(self, cluster: ThreadedLoop[Any], hook: RequestHook) -> None:
        self._cluster = cluster
        self._hook = hook

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._hook!r}>"

    @property
    def active(self) -> bool:
        """Whether it is installed."""
        return self._hook.active

    @property
    def uses(self) -> int:
        """The number of requests that it was called with."""
        return self._hook.uses

    def end(self) -> None:
        """Remove it. Ending twice has no effect."""
        self._cluster.call(self._hook.end)


class ThreadedWaits(WaitMethods[None]):
    """The methods of `ClusterWaits`, for blocking code."""

    def __init__(self, cluster: ThreadedLoop[Any]) -> None:
        self._cluster = cluster

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._cluster!r}>"

    def _until(self, wait: Wait, timeout: Timeout) -> None:
        self._cluster.call(lambda: self._cluster.running.wait_for.until(wait, timeout))


class ThreadedMoves(MoveMethods):
    """The methods of `Moves`, for blocking code."""

    def __init__(self, cluster: ThreadedCluster) -> None:
        self._cluster = cluster

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._cluster!r}>"

    def _call(self, move: Callable[[Moves], None]) -> None:
        self._cluster.call(lambda: move(self._cluster.running.move))


class ThreadedFaults(FaultMethods[ThreadedFault]):
    """The methods of `Faults`, for blocking code."""

    def __init__(self, cluster: ThreadedLoop[Any]) -> None:
        self._cluster = cluster

    def _begin(self, fault: Fault) -> ThreadedFault:
        begin = self._cluster.running.fault.begin
        return ThreadedFault(self._cluster, self._cluster.call(partial(begin, fault)))

    kill = FaultMethod(Kill)

    def revive(self, broker: int) -> None:
        """Start a broker that was killed."""
        self._cluster.call(partial(self._cluster.running.fault.revive, broker))

    def cut_connections(self, broker: int | None = None) -> int:
        """Cut the clients' connections, of one broker or of all; return how many there were."""
        return self._begin(CutConnections(broker)).uses

    def end_all(self) -> None:
        """End every fault."""
        self._cluster.call(self._cluster.running.fault.end_all)
