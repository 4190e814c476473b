"""The reaper: real time, with margins that a busy machine keeps; its thread, and its faults."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from purgatory import DelayedOperationPurgatory, ExpiredOperationReaper, Outcome
from tests.unit.core.probe import LONG_MS, Logs, Probe
from timer import SystemTimer, Timer, TimerTask

pytestmark = pytest.mark.usefixtures("no_thread_remains")

ROOT = Path(__file__).parents[3]


def test_reaper_expires_by_the_clock_in_order_and_not_early() -> None:
    expired: list[tuple[int, float]] = []

    def note(delay_ms: int) -> None:
        expired.append((delay_ms, (time.monotonic() - start_s) * 1_000))

    with DelayedOperationPurgatory("RealTime") as purgatory:
        start_s = time.monotonic()
        operations = [Probe(delay_ms) for delay_ms in (120, 1, 40, 80)]
        for operation in operations:
            operation.hooks["on_expiration"] = lambda ms=operation.delay_ms: note(ms)  # type: ignore[misc]
            purgatory.try_complete_else_watch(operation, ["a"])
        waiting = Probe(LONG_MS)
        purgatory.try_complete_else_watch(waiting, ["a"])
        assert [operation.wait(30) for operation in operations] == [Outcome.EXPIRED] * 4
        assert [delay_ms for delay_ms, _ in expired] == [1, 40, 80, 120]
        assert all(after_ms >= delay_ms for delay_ms, after_ms in expired)
        assert not waiting.is_completed
        assert purgatory.num_delayed == 1


def test_earlier_expiry_wakes_the_reaper() -> None:
    """The reaper sleeps until the first bucket is due, and an earlier one wakes it."""
    with DelayedOperationPurgatory("Earlier") as purgatory:
        purgatory.try_complete_else_watch(Probe(LONG_MS), ["a"])
        operation = Probe(1)
        purgatory.try_complete_else_watch(operation, ["a"])
        assert operation.wait(30) is Outcome.EXPIRED


def test_the_thread_is_a_daemon_named_after_broker_and_purgatory() -> None:
    with (
        DelayedOperationPurgatory("Fetch", broker_id=3) as fetch,
        DelayedOperationPurgatory("Produce", broker_id=3) as produce,
    ):
        threads = {thread.name: thread for thread in threading.enumerate()}
        for name in ("ExpirationReaper-3-Fetch", "ExpirationReaper-3-Produce"):
            assert threads[name].daemon
        assert fetch.reaper is not None
        assert produce.reaper is not None
        assert fetch.reaper.is_alive
        assert produce.reaper.is_alive


def test_a_purgatory_without_a_reaper_has_no_thread() -> None:
    before = set(threading.enumerate())
    with DelayedOperationPurgatory("Alone", reaper_enabled=False) as purgatory:
        purgatory.try_complete_else_watch(Probe(1), ["a"])
        assert purgatory.reaper is None
        assert set(threading.enumerate()) == before


def test_reaper_survives_a_failing_callback() -> None:
    def fail() -> None:
        raise LookupError("on purpose")

    with DelayedOperationPurgatory("Failing") as purgatory:
        for stage in ("on_complete", "on_expiration"):
            operation = Probe(1, hooks={stage: fail})
            purgatory.try_complete_else_watch(operation, ["a"])
            assert operation.wait(30) is Outcome.FAILED
        sound = Probe(1)
        purgatory.try_complete_else_watch(sound, ["a"])
        assert sound.wait(30) is Outcome.EXPIRED
        assert purgatory.reaper is not None
        assert purgatory.reaper.is_alive


class BrokenTimer(SystemTimer):
    """Raises at the first rounds of whoever drives it."""

    def __init__(self) -> None:
        super().__init__("broken")
        self.faults: list[BaseException] = [OSError("no clock"), SystemExit(1)]

    def advance_clock(self, timeout_ms: int | timedelta = 0) -> bool:
        if self.faults:
            raise self.faults.pop()
        return super().advance_clock(timeout_ms)


def test_a_timer_that_fails_is_logged_and_tried_again(logs: Logs) -> None:
    timer = BrokenTimer()
    with DelayedOperationPurgatory("Broken", timer=timer) as purgatory:
        operation = Probe(1)
        purgatory.try_complete_else_watch(operation, ["a"])
        assert operation.wait(30) is Outcome.EXPIRED
    failures = [log for log in logs if log["event"] == "reaper_failed"]
    assert [type(log["exc_info"]) for log in failures] == [SystemExit, OSError]
    assert {log["reaper"] for log in failures} == {"ExpirationReaper-0-Broken"}
    timer.close()


def test_reapers_heartbeat_continues_while_nothing_expires() -> None:
    beats = threading.Event()
    rounds: list[int | timedelta] = []

    class Counting(SystemTimer):
        def advance_clock(self, timeout_ms: int | timedelta = 0) -> bool:
            rounds.append(timeout_ms)
            if len(rounds) == 3:
                beats.set()
            return super().advance_clock(timeout_ms)

    timer: Timer = Counting("counting")
    with DelayedOperationPurgatory("Beating", timer=timer) as purgatory:
        reaper = purgatory.reaper
        assert reaper is not None
        first_ns = reaper.last_advance_ns
        assert beats.wait(30)
        assert reaper.last_advance_ns > first_ns
    assert set(rounds) == {200}, "as Kafka's does"
    timer.close()


def test_the_reaper_ends_by_itself_when_its_timer_is_closed() -> None:
    class Nothing(TimerTask):
        def run(self) -> None:
            pass

    timer = SystemTimer("closing")
    reaper = ExpiredOperationReaper("reaper", timer)
    reaper.start()
    timer.add(Nothing(LONG_MS))
    timer.close()
    reaper.join(30)
    assert not reaper.is_alive


ISOLATED = """
import os, sys
try:
    import _interpreters as all
    run = all.exec
except ImportError:  # before Python 3.13
    import _xxsubinterpreters as all
    run = all.run_string
said = run(all.create(), sys.argv[1])  # what is raised in there: told from 3.13 on
assert said is None, said
os._exit(0)  # CPython 3.12 does not end well once asyncio was imported in there
"""

REFUSED = """
from purgatory import DelayedOperationPurgatory
try:
    DelayedOperationPurgatory("default")
except RuntimeError as error:
    assert "reaper_enabled=False" in str(error), error
else:
    raise AssertionError("it was taken, without a thread")
with DelayedOperationPurgatory("driven", reaper_enabled=False) as purgatory:
    purgatory.timer.advance_clock(0)
print("refused", flush=True)
"""


@pytest.mark.own_process
@pytest.mark.skipif(
    not any(map(importlib.util.find_spec, ("_interpreters", "_xxsubinterpreters"))),
    reason="this Python makes no second interpreter",
)
@pytest.mark.parametrize("pure", [{}, {"PURGATORY_PURE": "1"}], ids=["as it is", "pure"])
def test_isolated_interpreter_is_refused_with_advice(
    pure: dict[str, str],
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ISOLATED, REFUSED],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **pure},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "refused\n"
