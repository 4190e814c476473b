"""A world in which a Kafka cluster and the asyncio programs that use it run in virtual time.

    with World(seed=7) as world:
        cluster = world.cluster(brokers=3, topics={"orders": 6})
        world.network.latency("0.2ms..2ms")
        world.run(application(cluster.bootstrap_servers))
        assert world.now_s > 3600

One seed decides everything that is random in a real network, scheduler and clocks.

Ground rules
------------
* One world of a process is entered at a time, and only the thread that entered it touches it.
"""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from datetime import timedelta
from functools import cached_property, lru_cache, partial
from pathlib import Path
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from purgatory.settings.typed_duration import Duration
from purgatory.virtual.chaos import HostKinds, Kind, draw_faults
from purgatory.virtual.clocks import US_PER_S, ClockPatch, PatchedClocks, WorldClock
from purgatory.virtual.connecting_loop import PatchedSockets
from purgatory.virtual.consistency import (
    MAX_STATES,
    OperationHistory,
    check_linearizable,
    check_serializable,
)
from purgatory.virtual.determinism import (
    ModuleCounters,
    NumberedObjects,
    OrderedSets,
    TimedRecords,
    WebSocketMasks,
    WorldCollector,
)
from purgatory.virtual.errors import WorldError
from purgatory.virtual.history import Event, History
from purgatory.virtual.hosts import PROCESS, Host, close_dead_tasks, is_dead
from purgatory.virtual.loop import VirtualLoop
from purgatory.virtual.network import LOCALHOST, NODE, VirtualNetwork, host_address
from purgatory.virtual.planned_faults import PlannedFault, rate_per_min
from purgatory.virtual.properties import (
    EXACTLY_ONCE,
    NO_LOSS,
    ORDER,
    Always,
    Eventually,
    Property,
    check_property,
)
from purgatory.virtual.refused_libraries import RefusedLibraries
from purgatory.virtual.sandbox import (
    AnyioCalls,
    DeferredSignals,
    checked_kinds,
    enter_sandbox,
    leave_sandbox,
)
from purgatory.virtual.schedules import FIFO, parse_schedule
from purgatory.virtual.unhandled import RAISE, check_policy, report_never_retrieved

if TYPE_CHECKING:
    from uuid import UUID

    from purgatory.pipeline.jobs.audit.client_settings import RunConfiguration
    from purgatory.pipeline.jobs.audit.findings import Findings
    from purgatory.virtual.cluster import WorldCluster
    from purgatory.virtual.disk import VirtualDisk
    from purgatory.virtual.story import Story


T = TypeVar("T")
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
"""The time of day at which a world begins."""

MAX_DURATION = "24h"
"""The default timeout of a run, in the world's time."""


MAX_STEPS = 1_000_000
"""The default limit of steps without progress of time, a second or two of the machine's."""


class World:
    """An event loop, a network, clusters and random numbers, all of one seed. A context manager.

    Args:
        seed: decides all that asyncio, networks and clocks leave open.
        start: the time of day at which it begins.
        without: the numbers of faults to exclude: see `faults`.
        plain_network: whether the network is simple, whatever its settings: each segment takes the
            middle of its range of delays, none is lost, and the bandwidth is unlimited. Faults are
            injected as usual.
        schedule: chooses the ready callback that runs next: "fifo", the first, as in asyncio;
            "random", any of them; "sticky", any of them, but often the task that ran last;
            "pct" or "pct:3", by priorities of tasks that change at 2 random choices
            (`PCTSchedule`); "mixed", "sticky" with most seeds, and "pct" with the others; or
            deviations from "fifo", such as "12:1,40:2", as reports of failures have them.
        story: whether `story` records the cause of each step of the program, at some cost.
        allow: exceptions from the sandbox: any of "sockets", "threads", "processes". Their effects
            aren't reproducible.
        on_unhandled: what an exception does that ends a background task, a callback or a handler,
            and that nothing retrieves: "raise", from `run` or at the test's end; "record", nothing
            but be logged and listed in `unhandled`.
        max_steps: the most steps of the loop without progress of time, until `run` raises
            `LivelockError`; None: no limit. A program that spins takes 10 us a step.

    Raises:
        WorldError: ``allow``, ``schedule`` or ``on_unhandled`` has an unknown value.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        start: datetime.datetime = START,
        without: Iterable[int] = (),
        plain_network: bool = False,
        schedule: str = FIFO,
        story: bool = False,
        allow: Iterable[str] = (),
        on_unhandled: str = RAISE,
        max_steps: int | None = MAX_STEPS,
    ) -> None:
        self.seed = seed
        self._schedule = parse_schedule(schedule, self._rng("schedule"))
        self._has_story = story
        self._allowed = checked_kinds(allow)
        self._max_steps = max_steps
        self._raises_unhandled = check_policy(on_unhandled) == RAISE
        self._start = start
        self._clock = WorldClock(round(start.timestamp() * US_PER_S))
        self._history = History(self._clock)
        self.plain_network = plain_network
        self.network = VirtualNetwork(
            self._clock, self._rng("network"), self._history, plain_network
        )
        self.history = OperationHistory()
        """Clients' calls and results, for `check_linearizable` and `check_serializable`."""
        self._patched_clocks = PatchedClocks(
            ClockPatch(self._clock, self._rng("application"), partial(_sleep, self))
        )
        self._deterministic_libraries = (
            TimedRecords(),
            OrderedSets(),
            ModuleCounters(),
            NumberedObjects(),
            WebSocketMasks(partial(self._rng, "masks")),
        )
        self._anyio_calls = AnyioCalls()
        self._collector = WorldCollector()
        self._sockets = PatchedSockets(self.network.ports)
        self._refused_libraries = RefusedLibraries(self._allowed)
        self._signals = DeferredSignals(World.__exit__, World._exit)
        self._loop: VirtualLoop | None = None
        self._is_left = False
        self._clusters: list[WorldCluster] = []
        self.max_elapsed_s: float | None = None
        """The time of `WorldTimeoutError`, whatever the timeouts of runs; None: no limit."""
        self._eventually: list[Eventually] = []
        self._hosts: dict[str, Host] = {}
        self.without = frozenset(without)
        """The numbers of excluded faults."""
        self.faults: list[PlannedFault] = []
        """The faults of `at` and `chaos`, with the numbers by which they can be excluded."""
        self._fault_error: Exception | None = None

    @cached_property
    def random(self) -> Random:
        """Random numbers for tests, from the same seed."""
        return self._rng("test")

    def __repr__(self) -> str:
        return f"<World of seed {self.seed} at {self.now_s:.6f} s>"

    # Entering and leaving.

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise WorldError("a world can be entered once: make another one with the same seed")
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise WorldError("a world brings its event loop: enter it where none is running")
        try:
            self._patched_clocks.begin()
            self._signals.begin()
            enter_sandbox(self._allowed)
            self._refused_libraries.begin()
            if "sockets" not in self._allowed:
                self._sockets.begin()
            rng, has_threads = self._rng("loop"), "threads" in self._allowed
            self._loop = VirtualLoop(
                self._clock,
                rng,
                self.network,
                self._history,
                self._collector,
                has_threads,
                self._schedule,
                self._has_story,
                self._max_steps,
            )
            self._collector.begin()
            for library in self._deterministic_libraries:
                library.begin()
            return self
        except BaseException:
            self._exit()
            raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            try:
                if exc is None:
                    self.check_properties()
                self._stop_all()
            except WorldError as error:
                if exc is None:
                    raise
                exc.add_note(f"And when the world was left: {error}")
            finally:
                self._exit()
        finally:
            self._exit()  # once more, since an interrupt may have cut the first call short

    def _exit(self) -> None:
        """Restore the state from before the world was entered. Idempotent."""
        if self._is_left:
            return
        if self._loop is not None:
            self._loop.leave()
        self._collector.end()
        self._sockets.end()
        self._refused_libraries.end()
        for library in self._deterministic_libraries:
            library.end()
        self._anyio_calls.end()
        if self._patched_clocks.is_active:
            leave_sandbox()
            self._patched_clocks.end()
        self._signals.end()
        self._is_left = True

    def _stop_all(self) -> None:
        """Stop the clusters, and cancel all tasks."""
        loop = self.loop
        loop.end_run()
        loop.unhandled.is_over = True
        loop.monitors.clear()
        loop.deadline_us = None
        for host in self._hosts.values():
            host.resume()
        for cluster in reversed(self._clusters):
            loop.run_until_complete(cluster.stop())
        tasks = sorted(asyncio.all_tasks(loop) - set(loop.dead_tasks), key=hash)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.deadline_us = self._clock.now_us + 60 * US_PER_S
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.network.end()
        close_dead_tasks(loop)
        loop.run_until_complete(_end_generators(loop))
        self.network.clear()

    # Running.

    @property
    def loop(self) -> VirtualLoop:
        """Its event loop.

        Raises:
            WorldError: the world was not entered, or was left.
        """
        if self._loop is None:
            raise WorldError("the world was not entered: with World(...) as world:")
        if self._loop.is_closed():
            raise WorldError("the world was left: do this within its block")
        return self._loop

    def run(
        self, application: Coroutine[Any, Any, T], timeout: str | timedelta | None = MAX_DURATION
    ) -> T:
        """Run a coroutine, and return its result. Its remaining tasks continue in the next run.

        Args:
            timeout: in the world's time, such as "2h" or a timedelta; None: no limit.

        Raises:
            DeadlockError: the coroutine waits for an event that can't happen.
            LivelockError: tasks spin, and the time does not advance (``max_steps``).
            WorldTimeoutError: the coroutine was not done in time.
            Exception: the first exception of the run that nothing handled (``on_unhandled``).
            WorldError: the loop is running already.
        """
        __tracebackhide__ = True  # for pytest
        loop = self.loop
        if loop.is_running():
            application.close()
            raise WorldError("world.run() within the world: await the coroutine instead")
        for library in self._deterministic_libraries:
            library.begin()
        self._anyio_calls.begin(loop)
        before_us = loop.deadline_us
        loop.deadline_us = None if timeout is None else self._clock.now_us + _duration_us(timeout)
        if self.max_elapsed_s is not None:
            end_us = self._begin_us + round(self.max_elapsed_s * US_PER_S)
            loop.deadline_us = min(loop.deadline_us or end_us, end_us)
        try:
            result = loop.run_until_complete(application)
        except BaseException as error:
            loop.end_run()  # an interrupt may have kept asyncio from it
            loop.unhandled.add_notes(error, self._tasks())
            raise
        finally:
            loop.deadline_us = before_us
        if self._raises_unhandled:
            loop.unhandled.check()
        return result

    def pass_time(self, duration: str | timedelta) -> None:
        """Run the world for a duration, such as "10min" or a timedelta."""
        self.run(asyncio.sleep(Duration(duration).seconds), None)

    def at(self, when: str | timedelta, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function, or coroutine function, at a time after the world began.

        `check_properties` raises its exception as well, as at the end of a test.

        Raises:
            ValueError: ``when`` is no duration.
        """
        name = getattr(function, "__qualname__", repr(function))
        text = f"{name}({', '.join(map(repr, arguments))})"
        self._schedule_fault(Duration(when).us, text, partial(function, *arguments))

    def chaos(
        self,
        cluster: WorldCluster | None = None,
        per_min: float = 4,
        kinds: Iterable[str] | None = None,
        begin: str | timedelta = "0s",
        end: str | timedelta = "10min",
        longest: str | timedelta = "10s",
        *,
        rate: str | float | None = None,
    ) -> Sequence[PlannedFault]:
        """Plan random faults, and return them.

        Args:
            cluster: the target, with the network to it; None: the only cluster, or none if there
                are hosts alone. Hosts that were started before are targets as well.
            per_min: how many faults begin in a minute, on average.
            kinds: the kinds of faults; None: all kinds that keep a healthy application's
                guarantees.
            begin, end: the period in which faults begin, from the start of the world.
            longest: the maximal duration of a fault.
            rate: in place of ``per_min``: "6/min", "0.1/s" or "30/h"; a number is per minute.

        Raises:
            WorldError: a kind is unknown, the end is not after the beginning, or no cluster is
                given, and there are several, or neither a cluster nor a host.
            ValueError: a duration or a rate is malformed.
        """
        if rate is not None:
            per_min = rate_per_min(rate)
        if cluster is None and (self._clusters or not self._hosts):
            cluster = self._single_cluster("chaos")
        begin_us, end_us, longest_s = (
            Duration(begin).us,
            Duration(end).us,
            Duration(longest).seconds,
        )
        if end_us <= begin_us:
            raise WorldError(f"chaos from {begin} to {end}: the end has to be after the beginning")
        rng = self._rng(f"chaos {len(self.faults)}")
        count = round(per_min * (end_us - begin_us) / (60 * US_PER_S))
        times_us = sorted(rng.randint(begin_us, end_us) for _ in range(count))
        nodes = ["client"]
        known: list[Kind] = []
        if cluster is not None:
            from purgatory.virtual.cluster_chaos import ClusterKinds

            nodes += [f"broker {number}" for number in cluster.brokers]
            known += ClusterKinds(rng, cluster, self.network).kinds()
        known += HostKinds(rng, list(self._hosts.values()), self.network, nodes).kinds()
        drawn = draw_faults(rng, count, known, kinds, longest_s)
        return [
            self._schedule_fault(at_us, fault.text, fault.begin)
            for at_us, fault in zip(times_us, drawn, strict=True)
        ]

    def _schedule_fault(self, at_us: int, text: str, begin: Callable[[], object]) -> PlannedFault:
        fault = PlannedFault(len(self.faults), at_us, text, begin)
        self.faults.append(fault)
        if fault.number not in self.without:
            context = copy_context()  # a fault begins although the process that planned it ended
            context.run(PROCESS.set, None)
            due_us = self._begin_us + at_us
            self.loop.call_at_us(due_us, self._begin, fault, context=context)
        return fault

    def _begin(self, fault: PlannedFault) -> None:
        self._history.record("fault", fault.text)
        try:
            begun = fault.begin()
        except Exception as error:
            self._keep_error(fault, error)
            return
        if isinstance(begun, Coroutine):
            task = self.loop.create_task(begun)
            task.add_done_callback(partial(self._on_fault_done, fault))

    def _on_fault_done(self, fault: PlannedFault, task: asyncio.Task[object]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._keep_error(fault, error)

    def _keep_error(self, fault: PlannedFault, error: Exception) -> None:
        error.add_note(f"raised by the fault {fault.text} at {fault.at_us / US_PER_S:g} s")
        self._fault_error = self._fault_error or error

    @contextmanager
    def node(self, name: str) -> Iterator[None]:
        """Assign tasks that begin within the block to a node of the network."""
        token = NODE.set(name)
        try:
            yield
        finally:
            NODE.reset(token)

    def host(self, name: str, main: Callable[[], Coroutine[Any, Any, object]]) -> Host:
        """Start a process of an application on a machine of its own.

        Its name is that of its node in the network, and others connect to it by that name. Sockets
        that it binds to no address, or to localhost, are bound to its own address.

        Args:
            main: a coroutine function, which is called at each start; a crash ends all its tasks.

        Raises:
            WorldError: another machine, such as "localhost", has this name or its address.
        """
        if name in self._hosts:
            raise WorldError(f"there is a host {name!r} already: restart() starts it again")
        address = host_address(name)
        taken = [LOCALHOST, name, *map(host_address, self._hosts)]
        if address in taken or name.startswith("broker "):
            raise WorldError(
                f"a host can't be called {name!r}: its address, {address}, is another's"
            )
        self._collector.freeze()
        host = self._hosts[name] = Host(
            name, main, self.loop, partial(self._new_disk, f"host {name}")
        )
        return host

    def signal(self, number: int) -> None:
        """Call the application's handler, set by ``loop.add_signal_handler``.

        Raises:
            WorldError: there is none.
        """
        self.loop.signal(number)

    # The cluster.

    def cluster(
        self,
        brokers: int = 3,
        topics: Mapping[str, int] | Iterable[str] = (),
        *,
        disk: bool | VirtualDisk = False,
        **config: Any,
    ) -> WorldCluster:
        """Start a Kafka cluster.

        Args:
            brokers: how many.
            topics: their names, with their numbers of partitions.
            disk: whether its logs and metadata are on a disk in memory, which can fill up and lose
                unforced writes (`WorldCluster.disk`, `WorldCluster.cut_power`); or the disk of a
                former cluster.
            config: other parameters of `ClusterConfig`.

        Raises:
            ClusterError: the cluster can't start.
            TypeError: `ClusterConfig` does not have such a parameter.
            WorldError: the call is in a coroutine that runs in the world.
        """
        if self.loop.is_running():
            raise WorldError(
                "world.cluster() starts one before a coroutine runs: call it in a fixture that is "
                "a plain function, or before world.run()"
            )
        from purgatory.virtual.cluster import WorldCluster, world_config

        on_disk = self._new_disk(f"{len(self._clusters)}") if disk is True else disk or None
        settings = world_config(brokers, topics, config, on_disk is not None)
        cluster = WorldCluster(self.network, settings, on_disk)
        self._clusters.append(cluster)
        self.run(cluster.start())
        cluster.name_brokers()
        return cluster

    def _new_disk(self, owner: str) -> VirtualDisk:
        from purgatory.virtual.disk import VirtualDisk

        record = partial(self._history.record, "disk")
        return VirtualDisk(self._rng(f"disk {owner}"), record, is_dead)

    # Properties.

    def always(self, name: str, predicate: Callable[[], object], every: int = 1) -> None:
        """Check from now on, after each step of the loop, that a property holds.

        If it does not, `run` raises `PropertyError`, an `AssertionError`. Exceptions of the
        predicate propagate as well.

        Args:
            name: the property's name, as "at most one leader".
            predicate: a plain function that returns whether it holds.
            every: the number of steps between two calls.

        Raises:
            WorldError: the predicate is a coroutine function, or ``every`` is not positive.
        """
        self.loop.monitors.append(Always(name, predicate, every, self._elapsed_s).check)

    def eventually(
        self, name: str, predicate: Callable[[], object], within: str | timedelta, every: int = 1
    ) -> None:
        """Check after each step of the loop that a property holds at some time from now on.

        When the time is over, `run` raises `PropertyError`, an `AssertionError`; so do the end of
        the world and `check_properties` before that.

        Args:
            name: the property's name, as "there is a leader".
            predicate: a plain function that returns whether it holds.
            within: the longest time until it holds, such as "30s" or a timedelta.
            every: the number of steps between two calls.

        Raises:
            WorldError: the predicate is a coroutine function, or ``every`` is not positive.
            ValueError: ``within`` is no duration.
        """
        limit_us = Duration(within).us
        until_s = (self._clock.elapsed_us + limit_us) / US_PER_S
        awaited = Eventually(name, predicate, every, self._elapsed_s, until_s)
        self._eventually.append(awaited)
        self.loop.monitors.append(awaited.check)
        self.loop.call_at_us(self._clock.now_us + limit_us + 1, _nothing)

    def check_properties(self) -> None:
        """Check that each property of `eventually` held, and that no host or fault raised.

        A test does so at its end.

        Raises:
            PropertyError: a property did not hold yet.
            Exception: the exception that ended a `Host`, that a function of `at` raised, or that
                nothing handled (``on_unhandled``).
        """
        if self._fault_error is not None:
            error, self._fault_error = self._fault_error, None
            raise error
        for host in self._hosts.values():
            if host.error is not None:
                ended_by, host.error = host.error, None
                ended_by.add_note(f"the host {host.name!r} ended by it")
                raise ended_by
        report_never_retrieved(self.loop, self._tasks())
        if self._raises_unhandled:
            self.loop.unhandled.check()
        pending, self._eventually = self._eventually, []
        for awaited in pending:
            awaited.check_at_end()

    def _tasks(self) -> Iterator[asyncio.Task[Any]]:
        yield from self.loop.unhandled.tasks
        for host in self._hosts.values():
            yield from host.tasks

    @property
    def unhandled(self) -> Sequence[Mapping[str, Any]]:
        """The contexts of the exceptions that nothing handled, as exception handlers take them."""
        return () if self._loop is None else tuple(self._loop.unhandled.contexts)

    def check_linearizable(self, model: Callable[[], Any], max_states: int = MAX_STATES) -> None:
        """Check that the operations of `history` look as if each took place at one moment.

        That moment lies between the call and the return, and the operations on each key are checked
        separately (Herlihy and Wing 1990; the search is Wing and Gong's, with Lowe's memory of
        states). An operation without a return may have taken place at any later time, or never.

        Args:
            model: makes the object as one client alone would see it: a class with a method for each
                name of an operation, such as `Register`. An exception of the method means that the
                operation can't take place then.
            max_states: the most states of one key to try. Their number is exponential in that of
                overlapping operations, at worst.

        Raises:
            AssertionError: no order explains the results, or no result is known.
            WorldError: the search is undecided after so many states, or the model lacks a method.
        """
        check_linearizable(self.history, model, max_states)

    def check_serializable(self, strict: bool = False, max_states: int = MAX_STATES) -> None:
        """Check that the transactions of `history` look as if one came after the other.

        Each reads and writes values of keys; a key that was not written has None. A transaction
        that did not commit may have taken place or not; one that was aborted did not. The problem
        is NP-complete (Papadimitriou 1979), and the search ends at a bound.

        Args:
            strict: whether a transaction that ended before another began must come before it.
            max_states: the most states to try.

        Raises:
            AssertionError: no order explains the reads, or no transaction is known to have
                committed.
            WorldError: the search is undecided after so many states.
        """
        check_serializable(self.history, strict, max_states)

    def check_no_loss(
        self,
        cluster: WorldCluster | None = None,
        configuration: RunConfiguration | None = None,
    ) -> Findings:
        """Check that all acknowledged records below the readers' positions were read.

        Args:
            cluster: None: the only one.
            configuration: of the clients, for further findings of the audit.

        Returns:
            All findings of the audit: ``count("unseen")`` of them are acknowledged records beyond
            the readers' positions, which don't count as lost.

        Raises:
            AssertionError: a record is lost, with the rows that show it; or nothing was
                acknowledged, or a partition with acknowledged records was not read at all, so the
                check shows nothing.
            WorldError: no cluster is given and the world doesn't have exactly one.
            SessionError: DuckDB is not installed (the extra `analysis`).
        """
        return self._check(NO_LOSS, cluster, configuration)

    def check_order(
        self,
        cluster: WorldCluster | None = None,
        configuration: RunConfiguration | None = None,
    ) -> Findings:
        """Check that each partition has each producer's records in the order of their first sends.

        Args, returns and raises: as `check_no_loss`, but unread records count as well.
        """
        return self._check(ORDER, cluster, configuration)

    def check_exactly_once(
        self,
        cluster: WorldCluster | None = None,
        configuration: RunConfiguration | None = None,
    ) -> Findings:
        """Check that acknowledged records were stored once, and aborted ones not read.

        Records of a topic are identified by key and value: two records with the same ones count as
        a duplicate.

        Args, returns and raises: as `check_no_loss`.
        """
        return self._check(EXACTLY_ONCE, cluster, configuration)

    def _check(
        self,
        checked_property: Property,
        cluster: WorldCluster | None,
        configuration: RunConfiguration | None,
    ) -> Findings:
        if cluster is None:
            cluster = self._single_cluster(checked_property.name)
        return check_property(cluster, checked_property, configuration)

    def _single_cluster(self, method: str) -> WorldCluster:
        if len(self._clusters) != 1:
            count = len(self._clusters) or "no"
            raise WorldError(
                f"world.{method}() is about a cluster, and this world has {count}: "
                + ("name one" if self._clusters else "world.cluster() starts one")
            )
        return self._clusters[0]

    # State.

    @property
    def now_s(self) -> float:
        """The time since the world began, in seconds."""
        return self._elapsed_s()

    def _elapsed_s(self) -> float:
        return self._clock.elapsed_us / US_PER_S

    @property
    def _begin_us(self) -> int:
        return self._clock.now_us - self._clock.elapsed_us

    @property
    def deviations(self) -> Mapping[int, int]:
        """The callbacks that ran before the first ready one, by the numbers of the choices."""
        return {} if self._schedule is None else self._schedule.deviations

    @property
    def choices(self) -> Sequence[int]:
        """The number of candidates of each choice of the schedule; none with "fifo"."""
        return () if self._schedule is None else self._schedule.widths

    @property
    def story(self) -> str:
        """The last steps of the program with their causes: see `purgatory.virtual.story`.

        Raises:
            WorldError: the world was made without ``story=True``, or not entered.
        """
        return self._recorded_story().text()

    def save_story(self, path: str | Path, **head: str) -> None:
        """Write the story to a file, which ``purgatory view`` shows.

        Args:
            head: texts for the top of the page: ``title``, ``failure``, ``command``, ``report``.

        Raises:
            OSError: the file can't be written.
            WorldError: the world was made without ``story=True``, or not entered.
        """
        from purgatory.virtual.story_document import story_document

        faults = [fault for cluster in self._clusters for fault in cluster.recent_faults()]
        document = story_document(self._recorded_story(), faults, self._topic_name, **head)
        Path(path).write_text(json.dumps(document), encoding="utf-8")

    def _recorded_story(self) -> Story:
        if self._loop is None or self._loop.story is None:
            raise WorldError("the world has recorded no story: World(..., story=True)")
        return self._loop.story

    def _topic_name(self, topic_id: UUID) -> str | None:
        found = (cluster.topic_of(topic_id) for cluster in self._clusters)
        return next((topic.name for topic in found if topic is not None), None)

    @property
    def digest(self) -> str:
        """The hash of all events so far: equal for equal runs."""
        return self._history.digest

    @property
    def events(self) -> int:
        """The number of events."""
        return self._history.events

    @property
    def clusters(self) -> Sequence[WorldCluster]:
        """Its clusters, in the order of their starts."""
        return tuple(self._clusters)

    def last_events(self, count: int = 40) -> list[Event]:
        """Return the last events, the oldest first."""
        return list(self._history.last(count))

    def _rng(self, purpose: str) -> Random:
        """Return a purpose's own generator, so that its draws don't change another's."""
        return Random(f"{self.seed}/{purpose}")


@lru_cache(maxsize=1_000)
def _duration_us(duration: str | timedelta) -> int:
    return Duration(duration).us


async def _end_generators(loop: VirtualLoop) -> None:
    await loop.shutdown_asyncgens()
    for _ in range(2):  # for calls of connection_lost
        await asyncio.sleep(0)


def _nothing() -> None:
    """Do nothing, in a step of the loop after which properties are checked."""


def _sleep(world: World, seconds: float) -> None:
    world.loop.sleep(seconds)
