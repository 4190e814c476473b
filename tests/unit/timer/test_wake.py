"""A wake ends every wait: when it is set, or when the time is over."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from types import FrameType

import pytest

from tests.proofs.interrupts.own_process import run_in_own_process
from timer.wake import Wake

LONG_S = 60
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("timeout_s", [-1.0, 0.0, 1e-9, 1e-7, 1e-6, 2e-6, 5e-6, 1e-5])
def test_a_wait_that_is_over_before_it_began_ends(timeout_s: float) -> None:
    """A queue's get waited for ever once it took longer to begin than its timeout was."""
    for _ in range(2_000):
        assert not Wake().wait(timeout_s)


@pytest.mark.parametrize("timeout_s", [None, float("inf"), 10.0**40, LONG_S, 0])
def test_a_wake_up_before_the_wait_ends_it_at_once(timeout_s: float | None) -> None:
    wake = Wake()
    wake.set()
    assert wake.wait(timeout_s)


def test_wake_ups_before_a_wait_spare_one_wait() -> None:
    wake = Wake()
    wake.set()
    wake.set()
    assert wake.wait(0)
    assert not wake.wait(0)
    wake.set()
    assert wake.wait(0)


@pytest.mark.parametrize("timeout_s", [None, 10.0**40, LONG_S])
def test_another_thread_wakes_the_waiting_one(timeout_s: float | None) -> None:
    wake, woken = Wake(), threading.Event()

    def wait() -> None:
        if wake.wait(timeout_s):
            woken.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not woken.wait(0.01)
    wake.set()
    assert woken.wait(LONG_S)
    waiter.join(LONG_S)


def test_many_threads_wake_one_that_misses_nothing() -> None:
    wake, done = Wake(), [0] * 4
    turns = 2_000

    def work(number: int) -> None:
        for _ in range(turns):
            done[number] += 1
            wake.set()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(done))]
    for thread in threads:
        thread.start()
    while sum(done) < turns * len(done):
        assert wake.wait(LONG_S)
    for thread in threads:
        thread.join(LONG_S)


def outlast_the_timeout_in_a_handler() -> None:
    """Waits whose time is over while a signal's handler runs."""

    def sleep(number: int, frame: FrameType | None) -> None:
        time.sleep(0.004)

    signal.signal(signal.SIGALRM, sleep)
    for _ in range(50):
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        assert not Wake().wait(0.003)


@pytest.mark.own_process
def test_a_wait_ends_though_a_handler_outlasts_it() -> None:
    run_in_own_process(outlast_the_timeout_in_a_handler)


def test_product_never_waits_at_a_simple_queue() -> None:
    found = [
        path.relative_to(ROOT).as_posix()
        for package in ("timer", "purgatory")
        for path in (ROOT / package).rglob("*.py")
        if "SimpleQueue" in path.read_text(encoding="utf-8")
    ]
    assert found == ["timer/wake.py"], "which says why"
