"""The event loop of a world: it has no selector, and time jumps to the next timer.

Callbacks run in the order in which they became ready, as asyncio promises, unless the world has a
schedule (`schedules`). The seed decides everything else: the order of timers that are due in the
same microsecond, and the time at which a call on an executor runs.

Computing takes no time. A program that only spins (``while not done: await sleep(0)``) would
then wait for ever: after `_BUSY_ITERATIONS` iterations at one moment, each further one takes
`_ITERATION_US`. After ``max_steps`` of these, or of waits for the shortest time, it is a livelock.

A request takes some twenty handles, so a function fills each at once, where asyncio calls a
constructor per class. Debug mode, which records where a handle was made, uses asyncio's.

Ground rules
------------
* Only the thread that entered the world touches the loop, ``call_soon_threadsafe`` included.
* ``_due`` holds expired timers until the iteration in which they are ordered.
"""

from __future__ import annotations

import asyncio
import contextvars
import linecache
import math
import random
import re
import sys
import threading
from asyncio import events, format_helpers
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from functools import cache, partial
from itertools import count
from operator import attrgetter
from os.path import basename, dirname
from types import CoroutineType, FrameType
from typing import Any, Final, TypeVar

from purgatory.virtual.clocks import US_PER_S, WheelClock, WorldClock, real_monotonic_ns, real_sleep
from purgatory.virtual.connecting_loop import ConnectingLoop
from purgatory.virtual.determinism import ITERATIONS, NumberedFuture, NumberedTask, WorldCollector
from purgatory.virtual.errors import (
    DeadlockError,
    LivelockError,
    PropertyError,
    WorldError,
    WorldTimeoutError,
)
from purgatory.virtual.history import History
from purgatory.virtual.hosts import PROCESS, is_dead
from purgatory.virtual.network import VirtualNetwork
from purgatory.virtual.schedules import Schedule, owner_of, unwrapped
from purgatory.virtual.story import Description, Place, RecordedWire, Story
from purgatory.virtual.unhandled import UnhandledErrors
from timer import InlineExecutor, SystemTimer


class ReadyHandle(asyncio.Handle):
    """A call in the next iteration."""

    __slots__ = ("cause", "priority")

    cause: int | None
    """The number of the step of the `Story` that made the handle ready."""
    priority: float

    # Attributes of the base class that typeshed lacks.
    _context: Context
    _callback: Any
    _args: Any
    _loop: Any
    _repr: str | None
    _source_traceback: Any


class DueHandle(asyncio.TimerHandle):
    """A call at a time, with its sequence number and its task on the wheel.

    The task refers to the handle, and is removed when its time has come or the handle is cancelled,
    lest the two be cyclic garbage.
    """

    __slots__ = ("cause", "due_us", "number", "priority", "wheel_task")

    cause: int | None
    due_us: int
    priority: float
    number: int
    wheel_task: Any

    _context: Context
    _callback: Any
    _args: Any
    _loop: Any
    _repr: str | None
    _scheduled: bool
    _source_traceback: Any
    _when: float

    def cancel(self) -> None:
        if not self._cancelled:
            wheel_task, self.wheel_task = self.wheel_task, None
            if wheel_task is not None:
                wheel_task.cancel()
            super(asyncio.TimerHandle, self).cancel()


_Kind = TypeVar("_Kind", ReadyHandle, DueHandle)
_new = object.__new__


def new_handle(
    kind: type[_Kind],
    callback: Callable[..., object],
    args: tuple[Any, ...],
    loop: asyncio.AbstractEventLoop,
    context: Context | None,
) -> _Kind:
    """Return a handle with the attributes that both kinds have."""
    handle = _new(kind)
    handle._context = copy_context() if context is None else context
    handle._loop = loop
    handle._callback = callback
    handle._args = args
    handle._cancelled = False
    handle._repr = None
    handle._source_traceback = None
    return handle


def due_handle(
    when: float,
    callback: Callable[..., object],
    args: tuple[Any, ...],
    loop: asyncio.AbstractEventLoop,
    context: Context | None,
) -> DueHandle:
    """Return the handle of a call at a time, without its ``wheel_task``."""
    if loop.get_debug():
        return DueHandle(when, callback, args, loop, context)
    handle = new_handle(DueHandle, callback, args, loop, context)
    handle._when = when
    handle._scheduled = False
    return handle


def report_failure(handle: Any, error: BaseException) -> None:
    """Call the loop's exception handler for a failed callback, as asyncio's handles do."""
    source = format_helpers._format_callback_source(handle._callback, handle._args)
    context = {"message": f"Exception in callback {source}", "exception": error, "handle": handle}
    if handle._source_traceback:
        context["source_traceback"] = handle._source_traceback
    handle._loop.call_exception_handler(context)


_WHEEL_SIZE: Final = 256


class LoopWheel(SystemTimer):
    """A timer whose tasks only append their handles to ``_due``, and need no executor."""

    def __init__(self, clock: WorldClock) -> None:
        super().__init__(
            "world", wheel_size=_WHEEL_SIZE, clock=WheelClock(clock), executor=InlineExecutor()
        )

    def expire_due(self) -> None:
        """Expire due tasks, as ``advance_clock`` does, for a single driver. O(due tasks)."""
        while True:
            while self._cascade_some():
                pass
            while self._has_due():
                self._run_some_due()
            if not self._poll():
                return


def waiting_stacks(loop: asyncio.AbstractEventLoop) -> str:
    """Return the stack of each task that is not done, the oldest task first."""
    dead = getattr(loop, "dead_tasks", ())
    tasks = sorted((task for task in asyncio.all_tasks(loop) if task not in dead), key=hash)
    return "\n".join(line for task in tasks for line in _lines(task))


def _lines(task: asyncio.Task[Any]) -> Iterator[str]:
    yield f"{task.get_name()}:"
    for frame, number in _frames(task.get_coro()):
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        yield f'  File "{path}", line {number}, in {name}'
        if source := linecache.getline(path, number).strip():
            yield f"    {source}"


def _frames(awaitable: Any) -> Iterator[tuple[FrameType, int]]:
    """The frames of a coroutine and of those that it awaits, the outermost first."""
    while awaitable is not None:
        if type(awaitable) is CoroutineType:  # the usual case
            if awaitable.cr_frame is not None:
                yield awaitable.cr_frame, awaitable.cr_frame.f_lineno
            awaitable = awaitable.cr_await
            continue
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
        frame = frame or getattr(awaitable, "ag_frame", None)
        if frame is not None:
            yield frame, frame.f_lineno
        inner = getattr(awaitable, "cr_await", None) or getattr(awaitable, "ag_await", None)
        awaitable = inner or getattr(awaitable, "gi_yieldfrom", None)


def _name(called: Any) -> str:
    """The name of a function or a coroutine; the address in its repr would differ by process."""
    name: str = getattr(called, "__qualname__", type(called).__qualname__)
    return f"{name.rpartition('<locals>.')[2]}()"


_ASYNCIO_FOLDER: Final = dirname(asyncio.__file__)


@cache
def _is_of_asyncio(path: str) -> bool:
    return dirname(path) == _ASYNCIO_FOLDER


_DEFAULT_NAME: Final = re.compile(r"Task-\d+")

_BUSY_ITERATIONS: Final = 100
_ITERATION_US: Final = 10
_MIN_DELAY_US: Final = 1
"""The shortest delay. On a real clock, time has passed when a timer fires. Programs that wait until
a deadline is *past*, and wake exactly at it, would wait again and again for no time at all."""

_FAR_FUTURE_S: Final = 1e11
"""Three thousand years: longer delays, as in ``sleep(math.inf)``, never end."""

_THREADS_TIMEOUT_NS: Final = 10_000_000_000
"""The longest wait for threads, on the machine's clock, if nothing else is scheduled."""

_WATCHED_STEPS: Final = 20
_MAX_SPINNING: Final = 5
"""The most callbacks that a `LivelockError` names."""

_MAX_JOB_DELAY_US: Final = 200
_BY_NUMBER: Final = attrgetter("number")
_EAGER_TASKS: Final = getattr(asyncio, "eager_task_factory", None)
"""A factory (from Python 3.12) whose tasks are numbered, too, as they are asyncio's own."""


class VirtualLoop(ConnectingLoop):
    """asyncio's event loop, in virtual time.

    Args:
        clock: the time, which this loop advances.
        rng: decides the order and the times that asyncio leaves open.
        network: carries its connections.
        history: records decisions.
        collector: collects garbage periodically.
        has_threads: whether threads may call it; then it waits for them before a deadlock.
        schedule: chooses the ready callback that runs next; None: the first runs.
        has_story: whether it records which callback made which ready, at half the speed.
        max_steps: the most iterations without progress of time; None: no limit.
    """

    _closed = True  # until the base class is initialized, which an interrupt may prevent

    # Attributes of the base class that typeshed lacks.
    _debug: bool
    _stopping: bool
    _check_closed: Callable[[], None]
    _set_coroutine_origin_tracking: Callable[[bool], None]
    _thread_id: int | None

    def __init__(
        self,
        clock: WorldClock,
        rng: random.Random,
        network: VirtualNetwork,
        history: History,
        collector: WorldCollector,
        has_threads: bool = False,
        schedule: Schedule | None = None,
        has_story: bool = False,
        max_steps: int | None = None,
    ) -> None:
        self._asyncgen_hooks = sys.get_asyncgen_hooks()
        self._initial_threads = set(threading.enumerate()) if has_threads else None
        self._due: list[DueHandle] = []
        self._wheel = LoopWheel(clock)
        super().__init__()
        self.clock = clock
        """The time for purgatories and timers on this loop: see `AsyncPurgatory`."""
        self.network = network
        self.iterations = 0
        self.deadline_us: int | None = None
        """The deadline of `World.run`; None: there is none."""
        self._rng = rng
        self._history = history
        self._collector = collector
        self._schedule = schedule
        self.stopped = set()
        self.dead_tasks = []
        self.unhandled = UnhandledErrors()
        self.closes_dead_tasks = False
        self.monitors: list[Callable[[], None]] = []
        """Functions to call after each callback. An exception of theirs ends `World.run`."""
        self._wheel_us = clock.now_us
        self._busy_iterations = 0
        self._max_steps = math.inf if max_steps is None else max_steps
        self._steps = 0
        """Iterations without another progress of time than theirs."""
        self._spinning: dict[str, None] = {}
        self.next_number: Callable[[], int] = count(1).__next__
        """Returns the number of a future or a task when it is added to a set."""
        # A request makes a dozen futures: a partial saves a call for each.
        self.create_future = partial(NumberedFuture, loop=self)  # type: ignore[method-assign]
        self._timers = 0
        self._labels = 0
        self._job_began_us: float = math.inf
        """The time at which the current call on an executor began."""
        self._signals: dict[int, Callable[[], object]] = {}
        self.story: Story | None = None
        if has_story:
            self._record_story()
        network.loop = self

    def _record_story(self) -> None:
        story = self.story = Story(self.clock, self._history, self._describe, self._waiting_tasks)
        self.network.wire_kind = partial(RecordedWire, story)
        call_soon, call_at_us = self.call_soon, self.call_at_us

        def recorded_call_soon(*args: Any, **more: Any) -> asyncio.Handle:
            handle: asyncio.Handle = story.set_cause(call_soon(*args, **more))
            return handle

        def recorded_call_at_us(*args: Any, **more: Any) -> asyncio.TimerHandle:
            handle: asyncio.TimerHandle = story.set_cause(call_at_us(*args, **more))
            return handle

        self.call_soon = recorded_call_soon  # type: ignore[method-assign]
        self.call_at_us = recorded_call_at_us  # type: ignore[method-assign]

    # Time.

    def time(self) -> float:
        return self.clock.now_us / US_PER_S

    def sleep(self, seconds: float) -> None:
        """Block the loop: advance the time without running any callback."""
        self.clock.now_us += math.ceil(seconds * US_PER_S)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Any,
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if delay is None:
            raise TypeError("delay must not be None")
        if delay >= _FAR_FUTURE_S:
            return self._new_unscheduled_handle(self.time() + delay, callback, args, context)
        due_us = self.clock.now_us + math.ceil(delay * US_PER_S)
        return self.call_at_us(due_us, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Any,
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if when is None:
            raise TypeError("when cannot be None")
        if when >= _FAR_FUTURE_S:
            return self._new_unscheduled_handle(when, callback, args, context)
        return self.call_at_us(math.ceil(when * US_PER_S), callback, *args, context=context)

    def call_at_us(
        self,
        due_us: int,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """As ``call_at``, in whole microseconds. O(1)."""
        if self._closed:
            self._check_closed()
        handle = due_handle(due_us / US_PER_S, callback, args, self, context)
        handle.due_us = due_us
        handle.number = self._timers = self._timers + 1
        delay_us = max(_MIN_DELAY_US, due_us - self.clock.now_us)
        handle.wheel_task = self._wheel.call_later(delay_us, self._due.append, handle)
        return handle

    def _new_unscheduled_handle(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> asyncio.TimerHandle:
        """Return the handle of a call that never comes, and for which time does not pass."""
        self._check_closed()
        handle = due_handle(when, callback, args, self, context)
        handle.wheel_task = None
        return handle

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        if self._closed or self._debug:
            return super().call_soon(callback, *args, context=context)
        handle = new_handle(ReadyHandle, callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """No effect: a `DueHandle` removes itself."""

    # Iterations.

    def _run_once(self) -> None:
        """Run iterations until the loop is stopped; asyncio's runs a single one."""
        __tracebackhide__ = True  # pytest would show this frame for each property that fails
        clock, ready, due, monitors = self.clock, self._ready, self._due, self.monitors
        stopped = self.stopped
        take = ready.popleft if self._schedule is None else partial(self._take, self._schedule)
        if self.story is not None:
            take = self.story.follow(take, stopped)
        while True:
            if ready or due or self._stopping:
                self._busy_iterations += 1
                if self._busy_iterations > _BUSY_ITERATIONS:
                    clock.now_us += _ITERATION_US
                    self._steps += 1
                    if self.deadline_us is not None and clock.now_us > self.deadline_us:
                        self._raise_timeout(self.deadline_us)
                if self._steps >= self._max_steps:
                    self._watch_spinning()
            else:
                self._advance_time()
            if clock.now_us != self._wheel_us:
                self._expire_due()
            if due:
                self._sort_due()
            self.iterations += 1
            if not self.iterations % ITERATIONS:
                self._collector.collect()
            for _ in range(len(ready)):
                handle = take()
                if handle._cancelled:
                    continue
                if stopped:
                    process = handle._context.get(PROCESS)
                    if process in stopped:
                        process.hold(handle)
                        continue
                try:
                    handle._context.run(handle._callback, *handle._args)
                except KeyboardInterrupt:
                    raise
                except SystemExit as error:
                    process = handle._context.get(PROCESS)
                    if process is None:
                        raise
                    process.host.exit(process, error)
                except BaseException as error:
                    report_failure(handle, error)
                for check in monitors:
                    try:
                        check()
                    except PropertyError as error:
                        error.add_note(f"after a step of {self._description(handle)}")
                        raise
            if self._stopping:
                return

    def _take(self, schedule: Schedule) -> Any:
        """Remove and return a schedule's next callback; record it unless it is the first."""
        ready, before = self._ready, len(schedule.deviations)
        first = ready[0]
        handle = schedule.pop(ready)
        if len(schedule.deviations) != before:
            choice = len(schedule.widths) - 1
            text = f"choice {choice}: {self._description(handle)} before {self._description(first)}"
            self._history.record("schedule", text)
        return handle

    def _description(self, handle: Any) -> str:
        """Return a handle's name and line: "worker() #2 at test_it.py:14", or the name alone."""
        name, places, _ = self._describe(handle)
        for path, line in reversed(places):
            if not _is_of_asyncio(path):
                return f"{name} at {basename(path)}:{line}"
        return name

    def _describe(self, handle: Any) -> Description:
        """Return a handle's function and task, the places of its frames, and its task."""
        owner = owner_of(handle)
        if isinstance(owner, NumberedTask):
            return self._describe_task(owner)
        called = unwrapped(handle._callback)
        code = getattr(called, "__code__", None)
        return _name(called), [(code.co_filename, code.co_firstlineno)] if code else [], None

    def _describe_task(self, task: NumberedTask) -> Description:
        called: Any = task.get_coro()
        places: list[Place] = [(frame.f_code.co_filename, line) for frame, line in _frames(called)]
        return f"{_name(called)} {self._label(task)}", places, task

    def _waiting_tasks(self) -> Iterator[Description]:
        for task in sorted(asyncio.all_tasks(self), key=hash):
            if isinstance(task, NumberedTask):
                yield self._describe_task(task)

    def _label(self, task: NumberedTask) -> str:
        """Return the name that a task was given, or its number in the world, as "#2"."""
        name = task.get_name()
        return f"#{task.label}" if _DEFAULT_NAME.fullmatch(name) else name

    def _advance_time(self) -> None:
        """Advance the time until something is due."""
        self._busy_iterations = 0
        clock, wheel, due, ready = self.clock, self._wheel, self._due, self._ready
        # At many of the wheel's times, timers only cascade to a finer level.
        while not (due or ready):
            due_us = wheel.next_expiration_ms()
            if due_us is None:
                if self._wait_for_threads():
                    return
                raise DeadlockError(
                    "nothing is ready, and nothing will ever be due. Waiting tasks:\n"
                    + waiting_stacks(self)
                )
            now_us = max(clock.now_us, due_us)
            if self.deadline_us is not None and now_us > self.deadline_us:
                clock.now_us = max(clock.now_us, self.deadline_us)
                self._raise_timeout(self.deadline_us)
            self._steps = self._steps + 1 if now_us <= clock.now_us + _MIN_DELAY_US else 0
            clock.now_us = now_us
            self._expire_due()

    def _wait_for_threads(self) -> bool:
        """Wait a while until a thread that was started in the world schedules a call."""
        if self._initial_threads is None:
            return False
        until_ns = real_monotonic_ns() + _THREADS_TIMEOUT_NS
        while not self._ready and real_monotonic_ns() < until_ns:
            if not set(threading.enumerate()) - self._initial_threads:
                break
            real_sleep(0.000_5)
        return bool(self._ready)

    def _raise_timeout(self, deadline_us: int) -> None:
        self.deadline_us = None
        done_by_s = (deadline_us - self.clock.now_us + self.clock.elapsed_us) / US_PER_S
        raise WorldTimeoutError(
            f"not done at {done_by_s:g} s of the world's time. Waiting tasks:\n"
            + waiting_stacks(self)
        )

    def _watch_spinning(self) -> None:
        """Note what runs in some more steps, as asyncio's own callbacks may take turns with it."""
        ready = [handle for handle in self._ready if not handle._cancelled]
        if self._steps == self._max_steps:
            self._spinning.clear()
        self._spinning.update(dict.fromkeys(map(self._description, ready)))
        if self._steps < self._max_steps + _WATCHED_STEPS:
            return
        steps, self._steps = self._max_steps, 0
        names = [name for name in self._spinning if " at " in name] or [*self._spinning]
        spinning = names[:_MAX_SPINNING] + ["others"] * (len(names) > _MAX_SPINNING)
        raise LivelockError(
            f"{steps:,} steps without progress of time (World(max_steps=...) permits more); again "
            f"and again ran {', '.join(spinning)}. Waiting tasks:\n" + waiting_stacks(self)
        )

    def _expire_due(self) -> None:
        """Expire due tasks of the wheel, once for each value of the clock."""
        self._wheel_us = self.clock.now_us
        self._wheel.expire_due()

    def _sort_due(self) -> None:
        due = [handle for handle in self._due if not handle._cancelled]
        self._due.clear()
        if len(due) > 1:
            rng = self._rng.random
            # By creation first, as their order on the wheel is arbitrary.
            due.sort(key=_BY_NUMBER)
            due.sort(key=lambda handle: (handle.due_us, rng()))
        for handle in due:
            handle.wheel_task = None
        self._ready.extend(due)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self.clock.now_us > self._job_began_us:  # in a job that has slept
            return self.call_at_us(self.clock.now_us, callback, *args, context=context)
        return self.call_soon(callback, *args, context=context)

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        if not self.closes_dead_tasks:  # generators of dead processes just end
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]

    def _write_to_self(self) -> None:
        """No effect: the loop never sleeps."""

    # Futures, tasks, and calls on other threads.

    def create_task(  # type: ignore[override]
        self, coro: Any, *, name: str | None = None, context: Any = None, **more: Any
    ) -> asyncio.Task[Any]:
        self._check_closed()
        factory = self.get_task_factory()
        task: asyncio.Task[Any]
        process = PROCESS.get() if context is None else context.get(PROCESS)
        label = self._labels = self._labels + 1
        if factory is not None and factory is not _EAGER_TASKS:
            task = super().create_task(coro, name=name, context=context, **more)
        else:
            if factory is not None:
                more["eager_start"] = not (process is not None and process.is_dead)
            own_name = f"Task-{label}" if name is None else name
            task = NumberedTask(coro, loop=self, name=own_name, context=context, **more)
        if isinstance(task, NumberedTask):
            task.label = label
            task.process = process
        if process is None:
            self.unhandled.tasks.add(task)
        else:
            process.tasks.add(task)
            if process.is_dead and not self.closes_dead_tasks:
                self.dead_tasks.append(task)
        if self.closes_dead_tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Call a function at a time that the seed decides; the executor is ignored.

        The call blocks nothing else: if it sleeps, its result comes that much later.
        """
        self._check_closed()
        future = self.create_future()
        if is_dead():
            return future
        delay_us = self._rng.randint(0, _MAX_JOB_DELAY_US)
        self._history.record("job", f"in {delay_us} us")
        self.call_at_us(self.clock.now_us + delay_us, self._run_job, future, func, args)
        return future

    def _run_job(
        self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        if future.done():
            return
        began_us = self._job_began_us = self.clock.now_us
        events._set_running_loop(None)
        try:
            result, error = func(*args), None
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            result, error = None, raised
            if isinstance(raised, StopIteration):  # futures refuse it
                error = RuntimeError("a call on an executor raised StopIteration")
                error.__cause__ = raised
        finally:
            events._set_running_loop(self)
            ended_us, self.clock.now_us = self.clock.now_us, began_us
            self._job_began_us = math.inf
        self.call_at_us(ended_us, _complete, future, result, error)
        del future, result, error  # the error refers to this frame

    def set_default_executor(self, executor: Any) -> None:
        """No effect: see `run_in_executor`."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """No effect: there are no threads."""

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an exception that nothing handled, as asyncio does, and keep it for `World.run`."""
        if self._is_of_dead_process(context):
            return
        self.unhandled.add(context)
        super().default_exception_handler(context)

    def _is_of_dead_process(self, context: dict[str, Any]) -> bool:
        failed = context.get("task") or context.get("future") or context.get("handle")
        if isinstance(failed, NumberedTask):
            process = getattr(failed, "process", None)
        elif isinstance(failed, ReadyHandle | DueHandle):
            process = failed._context.get(PROCESS)
        else:
            process = PROCESS.get()
        return process is not None and process.is_dead

    # Signals, and the end.

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:  # type: ignore[override]
        """Set the handler that `World.signal` calls: the world has no process of its own."""
        self._signals[int(sig)] = partial(self.call_soon, callback, *args, context=copy_context())

    def remove_signal_handler(self, sig: int) -> bool:
        return self._signals.pop(int(sig), None) is not None

    def signal(self, number: int) -> None:
        """Call the handler of a signal.

        Raises:
            WorldError: there is none.
        """
        if number not in self._signals:
            raise WorldError(f"signal {number}: the application has set no handler for it")
        self._signals[number]()

    def close(self) -> None:
        super().close()
        self._wheel.close()
        self._due.clear()

    def end_run(self) -> None:
        """Undo what an interrupt in the first or last lines of asyncio's run has left. Idempotent.

        From Python 3.12 on, asyncio begins its run before the block that ends it.
        """
        self._stopping = False
        self._set_coroutine_origin_tracking(False)
        if getattr(sys.get_asyncgen_hooks().firstiter, "__self__", None) is self:
            sys.set_asyncgen_hooks(*self._asyncgen_hooks)
        self._thread_id = None
        if events._get_running_loop() is self:
            events._set_running_loop(None)

    def leave(self) -> None:
        """Close the loop, whatever state an interrupt has left it in. Idempotent."""
        self.end_run()
        self.close()


def _complete(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
