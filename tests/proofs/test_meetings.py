"""Features that met badly once, where the table of calls has no row for one of the two."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from itertools import permutations
from types import FrameType
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from purgatory import DelayedOperationPurgatory, Outcome
from purgatory.metrics import register, unregister
from tests.unit.core.probe import Probe, Setting
from timer import InlineExecutor, ManualClock, SystemTimer, TimerTask
from timer.executor import SingleThreadExecutor


class Task(TimerTask):
    """Does nothing."""

    def run(self) -> None:
        """Nothing is to be done."""


class UsersClock(ManualClock):
    """Answers what it is told to."""

    answer: Any = 0

    def now_ns(self) -> int:
        answer: int = self.answer
        return answer


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_purgatory_timer_and_task_refuse_to_be_copied(duplicate: Callable[[Any], object]) -> None:
    setting = Setting()
    task = setting.timer.call_later(5, print)
    for one in (setting.purgatory, setting.timer, Task(5), task, Probe()):
        with pytest.raises(TypeError, match="can't be copied or pickled"):
            duplicate(one)
    setting.timer.close()


def test_operation_refuses_init_while_it_waits() -> None:
    setting = Setting()
    probe = setting.submit(Probe(), "a")
    with pytest.raises(RuntimeError, match="can't be made again after it was submitted"):
        probe.__init__()  # type: ignore[misc]
    assert probe.cancel()
    setting.assert_empty()


def test_purgatory_takes_times_beyond_64_bits() -> None:
    setting = Setting(clock=ManualClock(10**16), max_pending=1)
    probe = setting.submit(Probe(delay_ms=5), "a")
    with pytest.raises(RuntimeError, match="is full"):
        setting.submit(Probe(), "a")
    setting.pass_time(5)
    assert probe.outcome is Outcome.EXPIRED
    setting.assert_empty()


@pytest.mark.parametrize("time", ["5", None, 5.5])
def test_clock_without_whole_numbers_leaves_no_operation(time: Any) -> None:
    clock = UsersClock()
    setting = Setting(clock=clock)
    clock.answer = time
    probe = Probe(delay_ms=5)
    with pytest.raises(TypeError):
        setting.submit(probe, "a")
    assert not probe.is_completed  # nothing was changed
    clock.answer = 0
    setting.submit(probe, "a")
    assert setting.purgatory.close() == 1
    assert probe.outcome is Outcome.FAILED
    setting.assert_empty()


def test_interrupt_at_the_end_of_an_executor_is_raised_after_the_rest() -> None:
    executor = SingleThreadExecutor("ended")
    ran: list[str] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    executor._due.extend([interrupt, lambda: ran.append("rest")])
    with pytest.raises(KeyboardInterrupt):
        executor.shutdown()
    assert ran == ["rest"]


def test_stored_error_keeps_its_traceback() -> None:
    try:
        raise LookupError("stored")
    except LookupError as error:
        stored = error

    def fail() -> None:
        raise OSError("new") from stored

    probe = Probe(ready=True, hooks={"on_complete": fail})
    Setting().submit(probe, "a")
    assert probe.error is not None and probe.error.__traceback__ is None
    assert probe.error.__cause__ is stored
    assert stored.__traceback__ is not None


def test_metrics_put_back_the_observer_in_any_order() -> None:
    def observe(*told: object) -> None:
        """Nothing is to be done."""

    for order in permutations(range(3)):
        with DelayedOperationPurgatory(
            "Fetch", reaper_enabled=False, on_completed=observe
        ) as purgatory:
            registries = [CollectorRegistry() for _ in order]
            for registry in registries:
                register(purgatory, registry, kafka_names=True)
            for number in order:
                unregister(purgatory, registries[number])
            assert purgatory.on_completed is observe


def test_metrics_pile_no_observers_up() -> None:
    seen: list[str] = []
    with DelayedOperationPurgatory("Fetch", reaper_enabled=False) as purgatory:
        purgatory.on_completed = lambda operation, counted_as, wait_ns: seen.append(counted_as)
        for _ in range(2_000):
            registry = CollectorRegistry()
            register(purgatory, registry, kafka_names=True)
            unregister(purgatory, registry)
        purgatory.try_complete_else_watch(Probe(ready=True), ["a"])
    assert seen == ["immediate"]


class Scripted:
    """A key whose hash does what a script says."""

    script: list[Callable[[], object]]

    def __hash__(self) -> int:
        if self.script:
            self.script.pop(0)()
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scripted)


@pytest.mark.parametrize("looks", range(5))
@pytest.mark.parametrize("more", range(4))
def test_key_whose_hash_uses_the_purgatory_does_no_harm(looks: int, more: int) -> None:
    setting = Setting()
    Scripted.script = []
    first, second, third = Probe(), Probe(), Probe()
    setting.submit(first, Scripted())
    idle: list[Callable[[], object]] = [int] * looks
    then: list[Callable[[], object]] = [int] * more
    Scripted.script = [
        *idle,
        lambda: setting.purgatory.try_complete_else_watch(second, [Scripted()]),
        *then,
        second.cancel,
    ]
    first.cancel()
    Scripted.script = []
    second.cancel()
    setting.submit(third, Scripted())
    assert setting.purgatory.watched == 1
    third.ready = True
    assert setting.purgatory.check_and_complete(Scripted()) == 1
    setting.assert_empty()


def test_finalizer_that_drives_a_timer_in_a_step_loses_nothing() -> None:
    for number in range(1, 400, 7):
        clock = ManualClock()
        timer = SystemTimer("nested", wheel_size=3, clock=clock, executor=InlineExecutor())
        ran: list[int] = []
        for delay_ms in (1, 2, 4, 7, 9, 14, 27):
            timer.call_later(delay_ms, ran.append, delay_ms)
        left = [number]

        def trace(
            frame: FrameType,
            event: str,
            arg: object,
            left: list[int] = left,
            timer: SystemTimer = timer,
            clock: ManualClock = clock,
        ) -> Any:
            if not frame.f_code.co_filename.endswith(
                ("system_timer.py", "timing_wheel.py", "timer_task_list.py", "delay_queue.py")
            ):
                return None
            if event == "line":
                left[0] -= 1
                if left[0] == 0:
                    sys.settrace(None)
                    clock.advance(3)
                    timer.advance_clock()
            return trace

        before = sys.gettrace()
        clock.advance(3)
        sys.settrace(trace)
        try:
            timer.advance_clock()
        finally:
            sys.settrace(before)
        while (next_ms := timer.next_expiration_ms()) is not None:
            clock.advance_to(max(next_ms, clock.now_ms()))
            timer.advance_clock()
        assert sorted(ran) == [1, 2, 4, 7, 9, 14, 27], number
        timer._check()
