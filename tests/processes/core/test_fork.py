"""A process that forks: each child has a purgatory that is empty, and works."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable

import pytest

from purgatory import DelayedOperationPurgatory, Outcome
from tests.unit.core.probe import Probe
from timer import SystemTimer

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system can't fork"),
    # Python 3.15 warns here, where earlier ones do not.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


def status_of_child(in_child: Callable[[], None]) -> int:
    """Fork, run ``in_child`` there, and return 0 if it went well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            in_child()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def use(purgatory: DelayedOperationPurgatory) -> None:
    """Have one operation expire, and one complete."""
    late = Probe(delay_ms=20)
    purgatory.try_complete_else_watch(late, ["key"])
    assert late.wait(60) is Outcome.EXPIRED
    done = Probe()
    purgatory.try_complete_else_watch(done, ["key"])
    done.ready = True
    assert purgatory.check_and_complete("key") == 1
    purgatory._check()


def test_a_child_starts_empty_and_has_a_reaper_of_its_own() -> None:
    with DelayedOperationPurgatory("Produce") as purgatory:
        parents = Probe()
        purgatory.try_complete_else_watch(parents, ["key"])

        def in_child() -> None:
            assert (purgatory.num_delayed, purgatory.watched, purgatory.timer.size) == (0, 0, 0)
            assert set(purgatory.counters.outcomes.values()) == {0}
            use(purgatory)
            names = {thread.name for thread in threading.enumerate()}
            assert "ExpirationReaper-0-Produce" in names
            purgatory.close()
            assert not [t for t in threading.enumerate() if "Produce" in t.name]

        assert status_of_child(in_child) == 0
        assert parents.outcome is Outcome.PENDING
        use(purgatory)
        assert purgatory.num_delayed == 1


def test_fork_at_any_moment_leaves_no_lock_taken() -> None:
    with DelayedOperationPurgatory("Produce") as purgatory:
        stop = threading.Event()

        def churn() -> None:
            while not stop.is_set():
                probe = Probe()
                purgatory.try_complete_else_watch(probe, ["a", "b"])
                probe.cancel()

        threads = [threading.Thread(target=churn) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            assert [status_of_child(lambda: use(purgatory)) for _ in range(10)] == [0] * 10
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        purgatory._check()


def test_child_may_touch_the_parents_operations() -> None:
    with DelayedOperationPurgatory("Produce") as purgatory:
        forced, cancelled = Probe(), Probe()
        for probe in (forced, cancelled):
            purgatory.try_complete_else_watch(probe, ["key"])

        def in_child() -> None:
            assert forced.force_complete()
            assert cancelled.cancel()
            assert purgatory.num_delayed == 0
            purgatory._check()

        assert status_of_child(in_child) == 0


def test_a_closed_purgatory_stays_closed_in_the_child() -> None:
    purgatory = DelayedOperationPurgatory("Produce")
    purgatory.close()

    def in_child() -> None:
        with pytest.raises(RuntimeError, match="was closed"):
            purgatory.try_complete_else_watch(Probe(), ["key"])

    assert status_of_child(in_child) == 0


def test_grandchild_has_a_working_purgatory() -> None:
    with DelayedOperationPurgatory("Produce") as purgatory:

        def in_child() -> None:
            use(purgatory)
            assert status_of_child(lambda: use(purgatory)) == 0
            use(purgatory)

        assert status_of_child(in_child) == 0


def test_a_timer_alone_starts_empty_in_the_child() -> None:
    timer = SystemTimer("alone")
    task = timer.call_later(60_000, print)
    ran = threading.Event()

    def in_child() -> None:
        assert timer.size == 0
        assert not task.cancel()
        timer.call_later(1, ran.set)
        while not ran.is_set():
            timer.advance_clock(200)
        timer._check()

    assert status_of_child(in_child) == 0
    assert timer.size == 1
    timer.close()
