"""Hosts of a world: processes of an application that crash, restart, pause, and have wrong clocks.

    billing = world.host("billing", run)   # run: a coroutine function, the process's main
    world.at("10s", billing.crash)
    world.at("20s", billing.restart)

A process is all that its main began: tasks, timers, connections and servers, which asyncio gives
the same context. A crash stops them where they are. No ``finally`` runs, no ``except`` sees it,
other ends see their connections reset, and the disk loses unforced writes. Variables outside of the
main survive, as nothing in Python's memory belongs to one process: the main has to make its own.

A process that crashes itself in the middle of a step runs on to its next ``await``, as nothing can
stop Python there. Nothing that it does meanwhile has an effect on its disk, the network, or timers.

Ground rules
------------
* Only the world's own thread uses it.
* The loop passes each callback of a process in ``stopped`` to `HostProcess.hold`, and does not run
  it.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from purgatory.settings.typed_duration import Duration
from purgatory.virtual.clocks import WorldClock
from purgatory.virtual.network import NODE, NetworkLoop, VirtualNetwork
from purgatory.virtual.sockets import VirtualSocket

if TYPE_CHECKING:
    from purgatory.virtual.disk import VirtualDisk

PROCESS: ContextVar[HostProcess | None] = ContextVar("PROCESS", default=None)
"""The process of the current task, if it runs on a `Host`."""


class HostProcess:
    """One life of a host, from its start to its end."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.sockets: WeakSet[VirtualSocket] = WeakSet()
        self.is_paused = False
        self.is_dead = False
        self.held: list[Any] = []
        """The callbacks that were due while it was paused."""

    def hold(self, handle: Any) -> None:
        """Keep a callback until the process resumes, or drop it if the process is dead."""
        if self.is_paused:
            self.held.append(handle)


def is_dead() -> bool:
    """Whether the code that runs belongs to a process that has ended."""
    process = PROCESS.get()
    return process is not None and process.is_dead


class HostLoop(NetworkLoop):
    """The world's event loop, as its hosts use it."""

    clock: WorldClock
    network: VirtualNetwork
    stopped: set[HostProcess]
    """Processes that are paused or dead, whose callbacks must not run."""
    dead_tasks: list[asyncio.Task[Any]]
    """The tasks of dead processes."""
    closes_dead_tasks: bool
    """Whether `close_dead_tasks` is closing them."""
    _ready: deque[Any]
    """The event loop's ready callbacks, which typeshed lacks."""

    def add_ready(self, handles: Iterable[Any]) -> None:
        """Add callbacks that were held, behind those that are ready."""
        self._ready.extend(handles)


class Host:
    """A machine with one process: see `World.host`.

    Args:
        name: its name in the network.
        main: the coroutine function that its process runs.
        new_disk: makes its disk at the first use.
    """

    def __init__(
        self,
        name: str,
        main: Callable[[], Coroutine[Any, Any, object]],
        loop: HostLoop,
        new_disk: Callable[[], VirtualDisk],
    ) -> None:
        self.name = name
        self.error: BaseException | None = None
        """The exception that ended its process, which `World.check_properties` raises; None after a
        restart. For a `SystemExit` it is a RuntimeError, and None if the status is 0."""
        self._main = main
        self._loop = loop
        self._new_disk = new_disk
        self._process: HostProcess | None = None
        self._offset_us = 0
        self._drift = 0.0
        self._set_us = 0
        self._start()

    def __repr__(self) -> str:
        return f"<Host {self.name!r} {self.state}>"

    @cached_property
    def disk(self) -> VirtualDisk:
        """Its files. A crash leaves the forced writes, and some of the others."""
        return self._new_disk()

    @property
    def tasks(self) -> Iterable[asyncio.Task[Any]]:
        """The tasks of its process."""
        return () if self._process is None else self._process.tasks

    @property
    def state(self) -> str:
        """One of "running", "paused" and "down"."""
        if self._process is None:
            return "down"
        return "paused" if self._process.is_paused else "running"

    def _start(self) -> None:
        process = self._process = HostProcess(self)
        self.error = None
        context = copy_context()
        context.run(NODE.set, self.name)
        context.run(PROCESS.set, process)
        self._loop.create_task(self._run(process), name=self.name, context=context)

    async def _run(self, process: HostProcess) -> None:
        try:
            await self._main()
        except asyncio.CancelledError:
            raise
        except SystemExit as error:
            self.exit(process, error)
        except Exception as error:
            if self._process is process:
                self.error = error
                self._end("failed")

    def exit(self, process: HostProcess, error: SystemExit) -> None:
        """End a process that called ``sys.exit``."""
        if self._process is process:
            if error.code not in (None, 0):
                self.error = RuntimeError(f"the process exited with status {error.code!r}")
                self.error.__cause__ = error
            self._end("exit")

    # Faults.

    def crash(self) -> None:
        """Stop the process at once, as a power cut does. No effect on a host that is down."""
        if self._process is not None:
            self._end("crash")
            if "disk" in vars(self):
                self.disk.cut_all_power()
                self.disk.restore_power()

    def restart(self) -> None:
        """Start a new process, after a `crash` if one is running."""
        self.crash()
        self._loop.network.history.record("host", f"{self.name}: restart")
        self._start()

    def pause(self) -> None:
        """Stop the process until `resume`, as SIGSTOP or a long garbage collection does.

        Its connections stay open, and arriving data waits. No effect unless it is running.
        """
        if self._process is not None and not self._process.is_paused:
            self._loop.network.history.record("host", f"{self.name}: pause")
            self._process.is_paused = True
            self._loop.stopped.add(self._process)

    def resume(self) -> None:
        """Resume the process after a `pause`. No effect unless it is paused."""
        process = self._process
        if process is not None and process.is_paused:
            self._loop.network.history.record("host", f"{self.name}: resume")
            process.is_paused = False
            self._loop.stopped.discard(process)
            self._loop.add_ready(process.held)
            process.held = []

    def set_clock(self, offset: str | timedelta = "0s", drift: float = 0.0) -> None:
        """Set the difference of its time of day from the world's, from now on.

        Monotonic clocks, and so timers, stay right. Each call makes the clock jump.

        Args:
            offset: how far it is ahead, such as "90s", or behind, "-90s"; or a timedelta.
            drift: how many seconds it gains in a second: 0.001, or -0.001.

        Raises:
            ValueError: the offset is no duration.
        """
        if isinstance(offset, timedelta):
            self._offset_us = offset // timedelta(microseconds=1)
        else:
            sign = -1 if offset.startswith("-") else 1
            self._offset_us = sign * Duration(offset.removeprefix("-")).us
        self._drift = drift
        self._set_us = self._loop.clock.now_us
        self._loop.clock.skew_us = skew_us
        text = f"{self.name}: clock {offset}, drift {drift:g}"
        self._loop.network.history.record("host", text)

    @property
    def skew_us(self) -> int:
        """Microseconds by which its clock is ahead of the world's."""
        return self._offset_us + round(self._drift * (self._loop.clock.now_us - self._set_us))

    def _end(self, how: str) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.is_paused = False
        process.is_dead = True
        process.held = []
        loop = self._loop
        loop.network.history.record("host", f"{self.name}: {how}")
        loop.stopped.add(process)
        loop.dead_tasks += [task for task in process.tasks if not task.done()]
        loop.network.end_process(self.name, process)
        for bound in list(process.sockets):
            bound.close()


def skew_us() -> int:
    """Return how many microseconds the clock of the current host is ahead of the world's."""
    process = PROCESS.get()
    return 0 if process is None else process.host.skew_us


_MAX_CLOSES: Final = 100


def close_dead_tasks(loop: HostLoop) -> None:
    """Close the coroutines of dead processes, at the end of a world, and collect their garbage.

    Python then runs their ``finally`` blocks and destructors, which a crash must not. Their errors
    and warnings are ignored: a process that crashed leaves its clients unclosed.
    """
    if not loop.dead_tasks:
        return
    original_handler = loop.get_exception_handler()
    dead = copy_context()  # tasks of a `finally` belong to a dead process, and never run
    dead.run(PROCESS.set, next(iter(loop.stopped)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loop.set_exception_handler(lambda *_: None)
        loop.closes_dead_tasks = True
        while loop.dead_tasks:
            dead.run(_close, loop, loop.dead_tasks.pop())
        loop.run_until_complete(asyncio.sleep(0))
        gc.collect()
        loop.closes_dead_tasks = False
        loop.set_exception_handler(original_handler)


def _close(loop: HostLoop, task: Any) -> None:
    task._log_destroy_pending = False
    events._set_running_loop(loop)
    try:
        for _ in range(_MAX_CLOSES):  # a `finally` that awaits takes one more close
            with suppress(Exception, asyncio.CancelledError, SystemExit):
                task.get_coro().close()
                break
    finally:
        events._set_running_loop(None)
