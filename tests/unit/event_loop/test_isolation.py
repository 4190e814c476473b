"""An error of one wait ends that wait, and touches no other: CancelledError too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import count

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome
from purgatory.core.loop_reaper import AGAIN_MS
from tests.unit.event_loop.conftest import new_purgatory, passed_s, run_ready, run_virtually
from timer import InlineExecutor, ManualClock, SystemTimer


def asks_a_cancelled_future() -> Callable[[], bool]:
    """Return a condition that raises CancelledError at each check but the two of its start."""
    future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    checks = count(1)

    def until() -> bool:
        if next(checks) > 2:
            future.cancel()
        return future.done() and future.result()

    return until


def test_condition_that_raises_cancelled_ends_only_its_own_wait() -> None:
    async def main() -> list[tuple[type[BaseException], float]]:
        ended: list[tuple[type[BaseException], float]] = []

        async def wait(until: Callable[[], bool]) -> None:
            try:
                await purgatory.wait(["log"], until, timeout=0.05)
            except BaseException as error:
                ended.append((type(error), round(passed_s(), 2)))

        async with new_purgatory() as purgatory:
            conditions = [asks_a_cancelled_future(), *[lambda: False] * 3]
            tasks = [asyncio.create_task(wait(until)) for until in conditions]
            await asyncio.wait(tasks, timeout=2)
            assert purgatory.core.timer.size == 0
        return ended

    assert run_virtually(main) == [(asyncio.CancelledError, 0.05)] + [(TimeoutError, 0.05)] * 3


def test_a_notifying_task_is_not_cancelled_by_another_tasks_condition() -> None:
    async def main() -> tuple[bool, bool, int]:
        ready = False
        async with new_purgatory() as purgatory:
            bad = asyncio.create_task(purgatory.wait(["log"], asks_a_cancelled_future()))
            good = asyncio.create_task(purgatory.wait(["log"], lambda: ready))
            await run_ready()
            ready = True
            completed = purgatory.notify("log")
            assert purgatory.counters.callback_errors["try_complete"] == 1
            await asyncio.wait([bad, good])
            return bad.cancelled(), good.result(), completed

    assert run_virtually(main) == (True, True, 1)


class RaisesCancelled(DelayedOperation):
    """Raises CancelledError in one of its callbacks."""

    def __init__(self, stage: str) -> None:
        super().__init__(5)
        self.stage = stage
        self.calls: list[str] = []

    def _called(self, stage: str) -> None:
        self.calls.append(stage)
        if stage == self.stage:
            raise asyncio.CancelledError

    def try_complete(self) -> bool:
        if self.stage == "try_complete" and not self.calls:
            self.calls.append("first check")
            return False
        self._called("try_complete")
        return False

    def on_complete(self) -> None:
        self._called("on_complete")

    def on_expiration(self) -> None:
        self._called("on_expiration")

    def on_failure(self, error: BaseException) -> None:
        assert isinstance(error, asyncio.CancelledError)
        self._called("on_failure")


@pytest.mark.parametrize("stage", ["try_complete", "on_complete", "on_expiration"])
def test_callback_may_raise_cancelled_on_threads_too(stage: str) -> None:
    clock = ManualClock()
    timer = SystemTimer("test", clock=clock, executor=InlineExecutor())
    with DelayedOperationPurgatory("Fetch", timer=timer, reaper_enabled=False) as purgatory:
        bad, told = RaisesCancelled(stage), threading.Event()
        bad.call_when_completed(told.set)
        purgatory.try_complete_else_watch(bad, ["key"])
        others = [RaisesCancelled("") for _ in range(2)]
        for other in others:
            purgatory.try_complete_else_watch(other, ["key"])
        clock.advance(6)
        timer.advance_clock()
        assert bad.outcome is Outcome.FAILED
        assert bad.calls[-1] == "on_failure"
        assert told.is_set()
        assert [other.outcome for other in others] == [Outcome.EXPIRED] * 2
        assert timer.size == purgatory.num_delayed == purgatory.watched == 0
    timer.close()


@pytest.mark.parametrize("interrupts", [1, 5])
def test_an_interrupt_in_one_timeout_leaves_the_others_theirs(interrupts: int) -> None:
    class Interrupt(BaseException):
        """The exception of a signal's handler."""

    async def main() -> tuple[list[BaseException | None], list[float]]:
        loop = asyncio.get_running_loop()
        raised: list[BaseException | None] = []
        loop.set_exception_handler(lambda _, context: raised.append(context.get("exception")))
        late_s: list[float] = []

        def interrupted() -> bool:
            if passed_s() > 0.04:
                raise Interrupt
            return False

        async def expire(timeout: float) -> None:
            with pytest.raises(TimeoutError):
                await purgatory.wait(["log"], lambda: False, timeout)
            late_s.append(round(passed_s() - timeout, 3))

        async with new_purgatory() as purgatory:
            bad = [
                asyncio.create_task(purgatory.wait(["log"], interrupted, timeout=0.05))
                for _ in range(interrupts)
            ]
            good = [asyncio.create_task(expire(timeout)) for timeout in (0.05, 0.05, 0.3)]
            _, pending = await asyncio.wait([*bad, *good], timeout=2)
            assert not pending
            assert all(isinstance(one.exception(), Interrupt) for one in bad)
        return raised, late_s

    raised, late_s = run_virtually(main)
    assert [type(error).__name__ for error in raised] == ["Interrupt"] * interrupts
    assert late_s[2] == 0
    assert max(late_s) <= AGAIN_MS / 1_000 * interrupts
