"""Rates and the outcomes of the last minutes, by a clock that is moved by hand."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.debug.history import INTERVAL_S, MINUTES, History
from tests.unit.core.probe import Probe
from tests.unit.debug.conftest import Looked


class Watched:
    """The past of one purgatory, in which so many operations complete in each interval."""

    def __init__(self, looked: Looked) -> None:
        self.looked = looked
        self.now_s = 1_000.0
        self.past = History(lambda: self.now_s)

    def go_on(self, intervals: int, each: int) -> None:
        for _ in range(intervals):
            self.past.sample()
            for _ in range(each):
                self.looked.purgatory.try_complete_else_watch(Probe(ready=True), ["a"])
            self.now_s += INTERVAL_S

    def told(self) -> dict[str, Any]:
        return self.past.rates(self.looked.purgatory, self.looked.purgatory.counters)


@pytest.fixture
def watched(looked: Looked) -> Watched:
    return Watched(looked)


def test_history_is_empty_before_the_first_sample(watched: Watched) -> None:
    told = watched.told()
    assert (told["known_s"], told["minutes"]) == (0, [])
    assert set(told["per_s"]["1m"].values()) == {0}


def test_rates_are_of_the_time_that_is_known(watched: Watched) -> None:
    watched.go_on(4, each=10)
    told = watched.told()
    assert told["known_s"] == 4 * INTERVAL_S
    assert told["per_s"]["1m"]["immediate"] == told["per_s"]["15m"]["immediate"] == 2
    assert [minute["immediate"] for minute in told["minutes"]] == [40]


def test_minutes_are_listed_from_the_last_to_the_first(watched: Watched) -> None:
    for each in (1, 2, 3):
        watched.go_on(60 // INTERVAL_S, each)
    told = watched.told()
    assert [minute["immediate"] for minute in told["minutes"][:3]] == [36, 24, 12]
    assert told["per_s"]["1m"]["immediate"] == 3 / INTERVAL_S
    assert told["per_s"]["5m"]["immediate"] == 2 / INTERVAL_S


def test_no_more_samples_are_kept_than_are_described(watched: Watched) -> None:
    watched.go_on(MINUTES * 60 // INTERVAL_S * 2, each=1)
    told = watched.told()
    assert told["known_s"] <= MINUTES * 60 + INTERVAL_S
    assert len(told["minutes"]) == MINUTES
    assert {minute["immediate"] for minute in told["minutes"]} == {60 // INTERVAL_S}


def test_history_does_not_keep_purgatories_alive(watched: Watched) -> None:
    purgatory = DelayedOperationPurgatory("gone", reaper_enabled=False)
    watched.past.sample()
    assert watched.past.rates(purgatory, purgatory.counters)["per_s"]
    held = weakref.ref(purgatory)
    purgatory.close()
    del purgatory
    gc.collect()
    assert held() is None


def test_one_thread_samples_for_all_readers() -> None:
    past = History()
    before = {thread for thread in threading.enumerate() if thread.name == "purgatory-debug"}
    past.start()
    past.start()
    [thread] = {
        thread for thread in threading.enumerate() if thread.name == "purgatory-debug"
    } - before
    assert thread.daemon
    past.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_samples_again() -> None:
    past = History()
    past.start()
    child = os.fork()
    if child == 0:
        past.start()
        os._exit(0 if past._thread is not None and past._thread.is_alive() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    past.stop()
