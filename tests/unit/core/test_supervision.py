"""The reaper: its heartbeat, and its supervision."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from purgatory import DelayedOperationPurgatory, Outcome
from purgatory.core.reaper import ExpiredOperationReaper
from tests.unit.core.probe import Logs, Probe
from timer import ManualClock, SystemTimer


def kill(purgatory: DelayedOperationPurgatory) -> None:
    """End the reaper's thread, as nothing but a fault of the interpreter could."""
    reaper = purgatory.reaper
    assert reaper is not None
    thread = reaper._thread  # type: ignore[attr-defined]
    reaper._stopping = True  # type: ignore[attr-defined]
    thread.join(60)
    reaper._stopping = False  # type: ignore[attr-defined]
    assert not reaper.is_alive


def test_a_dead_reaper_is_replaced_by_the_next_operation(logs: Logs) -> None:
    with DelayedOperationPurgatory("Produce") as purgatory:
        kill(purgatory)
        purgatory._state.reaper_look_ns = 0  # as if a second had passed
        late = Probe(delay_ms=100)
        purgatory.try_complete_else_watch(late, ["key"])
        assert late.wait(60) is Outcome.EXPIRED
        reaper = purgatory.reaper
        assert reaper is not None
        assert (reaper.is_alive, reaper.restarts) == (True, 1)
        assert [entry["event"] for entry in logs] == ["reaper_restarted"]


def test_many_threads_start_one_new_reaper() -> None:
    with DelayedOperationPurgatory("Produce") as purgatory:
        kill(purgatory)
        reaper = purgatory.reaper
        assert reaper is not None
        threads = [threading.Thread(target=reaper.restart_if_dead) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        alive = [t for t in threading.enumerate() if t.name == "ExpirationReaper-0-Produce"]
        assert len(alive) == 1
        assert reaper.restarts == 1


def test_reaper_is_replaced_once_by_concurrent_calls() -> None:
    """A finalizer may run just then, and submit an operation."""
    with DelayedOperationPurgatory("Produce") as purgatory:
        kill(purgatory)
        reaper = purgatory.reaper
        assert isinstance(reaper, ExpiredOperationReaper)
        make = reaper._new_thread

        def make_with_a_finalizer() -> threading.Thread:
            reaper._new_thread = make  # type: ignore[method-assign]
            reaper.restart_if_dead()
            return make()

        reaper._new_thread = make_with_a_finalizer  # type: ignore[method-assign]
        assert not reaper.restart_if_dead()
        alive = [t for t in threading.enumerate() if t.name == "ExpirationReaper-0-Produce"]
        assert len(alive) == 1
        assert reaper.restarts == 1


def test_a_closed_purgatorys_reaper_is_not_restarted() -> None:
    purgatory = DelayedOperationPurgatory("Produce")
    purgatory.close()
    assert purgatory.reaper is not None
    assert not purgatory.reaper.restart_if_dead()
    assert not purgatory.reaper.is_alive


AT_EXIT = """
from purgatory import DelayedOperation, DelayedOperationPurgatory

class Waiting(DelayedOperation):
    def try_complete(self):
        return False

class Late:
    def __init__(self, purgatory):
        self.itself = self  # so that it is there until the interpreter ends
        self.purgatory, self.new_purgatory, self.new = purgatory, DelayedOperationPurgatory, Waiting

    def __del__(self):
        for purgatory in (self.purgatory, self.new_purgatory("late")):
            purgatory._state.reaper_look_ns = 0
            purgatory.try_complete_else_watch(self.new(10), ["key"])
            print(purgatory.num_delayed, purgatory.close())

late = Late(DelayedOperationPurgatory("early"))
"""


@pytest.mark.own_process
def test_a_submission_while_the_interpreter_ends_does_not_hang() -> None:
    started_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=False
    )
    assert time.monotonic() - started_s < 9, "it waited for a thread that is frozen"
    assert (ended.returncode, ended.stdout.split()) == (0, ["1", "1"] * 2), ended.stderr


def test_the_heartbeat_is_the_time_of_the_timers_clock() -> None:
    clock = ManualClock()
    timer = SystemTimer("manual", clock=clock)
    with DelayedOperationPurgatory("Produce", timer=timer) as purgatory:
        reaper = purgatory.reaper
        assert reaper is not None
        beat_ns = reaper.last_advance_ns
        clock.advance(10_000)
        while reaper.last_advance_ns == beat_ns:
            pass
        assert reaper.last_advance_ns == 10_000_000_000
    timer.close()


def test_starved_reaper_expires_all_operations_in_order() -> None:
    clock = ManualClock()
    timer = SystemTimer("manual", clock=clock)
    order: list[int] = []
    with DelayedOperationPurgatory("Produce", timer=timer, reaper_enabled=False) as purgatory:
        probes = [
            Probe(delay_ms=n, hooks={"on_expiration": partial(order.append, n)})
            for n in (5, 900, 20, 4_000, 60)
        ]
        for probe in probes:
            purgatory.try_complete_else_watch(probe, ["key"])
        clock.advance(5_000)  # no thread drove the timer
        timer.advance_clock(0)
        for probe in probes:
            assert probe.wait(60) is Outcome.EXPIRED
    assert order == [5, 20, 60, 900, 4_000]
    timer.close()


def test_clock_jump_of_hours_expires_only_due_operations() -> None:
    clock = ManualClock()
    timer = SystemTimer("manual", clock=clock)
    with DelayedOperationPurgatory("Produce", timer=timer, reaper_enabled=False) as purgatory:
        due = [Probe(delay_ms=n) for n in (1, 1_000, 3_600_000, 7_199_999)]
        later = Probe(delay_ms=7_200_001)
        for probe in (*due, later):
            purgatory.try_complete_else_watch(probe, ["key"])
        clock.advance(7_200_000)
        timer.advance_clock(0)
        assert {probe.wait(60) for probe in due} == {Outcome.EXPIRED}
        assert later.outcome is Outcome.PENDING
        purgatory._check()
    timer.close()


def test_next_call_resumes_an_interrupted_notification() -> None:
    clock = ManualClock()
    timer = SystemTimer("manual", clock=clock)
    with DelayedOperationPurgatory("Produce", timer=timer, reaper_enabled=False) as purgatory:
        told: list[str] = []
        interrupts = iter((KeyboardInterrupt,) * 3)

        def listener() -> None:
            for interrupt in interrupts:  # also when each awaited thread uses it at once
                raise interrupt
            told.append("told")

        operation = Probe()
        purgatory.try_complete_else_watch(operation, ["key"])
        operation.call_when_completed(listener)
        with pytest.raises(KeyboardInterrupt):
            operation.force_complete()
        assert operation.outcome is Outcome.COMPLETED and not told
        purgatory.check_and_complete("another key")
        assert told == ["told"]
