"""An interrupt at any instruction on an event loop: every wait ends, in time, and nothing is left.

The loop is in virtual time, and refuses to wait for nothing: a wait that nobody will ever end fails
its test at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Self

import pytest

from purgatory import AsyncPurgatory, DelayedOperation, PurgatoryClosedError
from purgatory.core import async_purgatory, loop_reaper
from purgatory.core.loop_reaper import AGAIN_MS
from tests.proofs.drawn import width
from tests.proofs.interrupts.interruptions import (
    Interrupt,
    Report,
    Scenario,
    interrupt_everywhere,
)
from tests.unit.event_loop.conftest import VirtualLoop, new_purgatory, run_ready
from timer import NATIVE

DRIVER = (str(async_purgatory.__file__), str(loop_reaper.__file__))
"""The files under test: the rest of the library has tests of its own."""

LATEST_S = (AGAIN_MS + 2) / 1_000
"""The time by which a timeout may be late after one interrupt."""


class SignalError(Exception):
    """The exception of an alarm's handler: it can be mistaken for an error of a callback."""


# An interrupt may come where a coroutine was just made.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

ERRORS = (Interrupt, SignalError, RecursionError)

each_error = pytest.mark.parametrize("error", ERRORS)


def interrupt(scenario: Callable[[], Scenario], error: type[BaseException]) -> Report:
    """Interrupt the calls at each instruction: by day by one of the errors, by night by each."""
    step = width(len(ERRORS), 1)
    first = 1 + ERRORS.index(error) % step
    return interrupt_everywhere(scenario, error, first, step, where=DRIVER)


class Flagged(DelayedOperation):
    """Completes once it is told that it is ready."""

    ready = False

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()


class Stage:
    """A purgatory on a virtual loop, and the tasks that wait in it."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.loop.set_exception_handler(lambda _, context: None)  # it hears of every interrupt
        self.purgatory: AsyncPurgatory = self.run(_make())
        self.tasks: list[asyncio.Task[Any]] = []
        self.ended_s: dict[asyncio.Task[Any], float] = {}
        self.ready = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def park(self, *waits: Coroutine[Any, Any, Any]) -> None:
        """Have a task wait for each, and let them come to where they wait."""

        async def park() -> None:
            for wait in waits:
                task = asyncio.create_task(wait)
                task.add_done_callback(self._note_end)
                self.tasks.append(task)
            await run_ready()

        self.run(park())

    def _note_end(self, task: asyncio.Task[Any]) -> None:
        self.ended_s[task] = self.loop.time()

    def until_ready(self, timeout: float | None = None) -> Coroutine[Any, Any, bool]:
        return self.purgatory.wait(["log"], lambda: self.ready, timeout)

    def resume(self, seconds: float = 1.0) -> None:
        """Let the loop run for some virtual time."""
        self.run(asyncio.sleep(seconds))

    def results(self) -> list[object]:
        """Return what the tasks ended with: their results, or their errors' types."""
        assert all(task.done() for task in self.tasks), "a wait did not end"
        return [
            "cancelled"
            if task.cancelled()
            else type(task.exception())
            if task.exception() is not None
            else task.result()
            for task in self.tasks
        ]

    def close_and_check(self) -> None:
        """Close everything, and see that nothing is left: no wait, no entry, no timer, no lock."""
        core = self.purgatory.core
        self.run(self.purgatory.aclose())
        self.run(run_ready())
        self.results()
        assert self.purgatory.watched == self.purgatory.num_delayed == core.timer.size == 0
        core._check()
        self.resume(100)  # past what an interrupt kept from being cancelled
        assert all(handle.cancelled() for handle in self.loop._scheduled)  # type: ignore[attr-defined]
        assert not core._state.lock._is_owned(), "a turn did not end"
        if NATIVE:
            return  # then the timer has no lock
        assert not core.timer._lock._is_owned(), "a lock is held"  # type: ignore[attr-defined]


async def _make() -> AsyncPurgatory:
    return new_purgatory()


@each_error
def test_timeouts_expire_though_the_loops_driver_is_interrupted(
    error: type[BaseException],
) -> None:
    timeouts_s = (0.01, 0.01, 0.03, 0.3)

    def scenario() -> Scenario:
        with Stage() as stage:
            stage.park(*(stage.until_ready(timeout) for timeout in timeouts_s))
            yield stage.resume
            for task, timeout_s in zip(stage.tasks, timeouts_s, strict=True):
                assert task.done()
                assert timeout_s <= stage.ended_s[task] <= timeout_s + LATEST_S
            stage.close_and_check()

    report = interrupt(scenario, error)
    assert any(place.function == "LoopReaper._come" for place in report.places)


@each_error
def test_no_interrupted_notification_of_another_thread_is_lost(
    error: type[BaseException],
) -> None:
    def scenario() -> Scenario:
        with Stage() as stage:
            purgatory = stage.purgatory
            stage.park(stage.until_ready(), purgatory.wait_for_threshold("hw", 5))
            stage.ready = True
            for note in (
                partial(purgatory.notify_threadsafe, "log"),
                partial(purgatory.advance_threadsafe, "hw", 7),
            ):
                if (yield note) is not None:
                    note()  # it raised: whoever told tells again
            yield partial(stage.resume, 0.001)
            assert stage.results() in ([True, 7], [error, 7], [True, error])
            assert not purgatory._notifications
            stage.close_and_check()

    interrupt(scenario, error)


@each_error
def test_a_wait_that_is_interrupted_leaves_nothing_behind(
    error: type[BaseException],
) -> None:
    def scenario() -> Scenario:
        with Stage() as stage:
            purgatory = stage.purgatory
            stage.park(stage.until_ready(0.05))
            yield partial(
                stage.park,
                stage.until_ready(0.01),
                purgatory.wait_for_threshold("hw", 5, timeout=0.01),
                purgatory.submit(Flagged(10), ["log"], {"hw": 7}),
            )
            stage.park(stage.until_ready(0.02))  # the next one, for what was broken off
            stage.resume()
            stage.results()
            assert stage.ended_s[stage.tasks[0]] <= 0.05 + LATEST_S
            stage.close_and_check()

    interrupt(scenario, error)


@each_error
def test_a_cancelled_wait_that_is_interrupted_leaves_nothing_behind(
    error: type[BaseException],
) -> None:
    def scenario() -> Scenario:
        with Stage() as stage:
            stage.park(stage.until_ready(5), stage.until_ready(0.01))

            def cancel() -> None:
                stage.tasks[0].cancel()
                stage.run(run_ready())

            yield cancel
            assert stage.tasks[0].done()
            stage.resume()
            assert stage.results()[1] is TimeoutError
            stage.close_and_check()

    interrupt(scenario, error)


@each_error
def test_an_operation_that_another_thread_completes_wakes_its_task(
    error: type[BaseException],
) -> None:
    def scenario() -> Scenario:
        with Stage() as stage:
            operation = Flagged(60_000)
            stage.park(stage.purgatory.submit(operation, ["log"]))
            stage.purgatory._thread_id = -1  # as if this were another thread than the loop's
            if (yield operation.force_complete) is not None:
                operation.cancel()  # whoever comes next
            yield partial(stage.resume, 0.001)
            stage.results()
            stage.close_and_check()

    interrupt(scenario, error)


@each_error
def test_an_interrupted_event_is_reported_again_and_completes_all(
    error: type[BaseException],
) -> None:
    def scenario() -> Scenario:
        with Stage() as stage:
            purgatory = stage.purgatory
            stage.park(
                stage.until_ready(), stage.until_ready(), purgatory.wait_for_threshold("hw", 5)
            )
            stage.ready = True
            for event in (partial(purgatory.notify, "log"), partial(purgatory.advance, "hw", 7)):
                if (yield event) is not None:
                    event()
            stage.run(run_ready())
            stage.results()
            stage.close_and_check()

    interrupt(scenario, error)


@each_error
@pytest.mark.parametrize("policy", ["fail", "expire", "leave"])
def test_a_close_that_is_interrupted_is_finished_by_the_next(
    error: type[BaseException], policy: Any
) -> None:
    def scenario() -> Scenario:
        with Stage() as stage:
            purgatory = stage.purgatory
            stage.park(
                stage.until_ready(),
                purgatory.wait_for_threshold("hw", 5, timeout=5),
                purgatory.submit(Flagged(60_000), ["log"]),
            )
            yield lambda: stage.run(purgatory.aclose(policy))
            stage.run(purgatory.aclose(policy))
            stage.run(run_ready())
            stage.results()
            stage.park(stage.until_ready())
            assert stage.results()[-1] is PurgatoryClosedError
            stage.close_and_check()

    interrupt(scenario, error)
