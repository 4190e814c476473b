"""The bridge to ``concurrent.futures``."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any

import pytest

from purgatory import Outcome, PurgatoryClosedError
from tests.unit.core.probe import Probe, Setting


def test_a_future_has_the_outcome_once_the_callbacks_have_run() -> None:
    setting = Setting()
    probe = Probe()
    future = setting.purgatory.future(probe, ["key"])
    assert not future.done()
    finished: list[list[str]] = []
    future.add_done_callback(lambda _: finished.append(probe.finished))
    probe.ready = True
    setting.purgatory.check_and_complete("key")
    assert future.result(timeout=60) is Outcome.COMPLETED
    assert finished == [["on_complete"]]


def test_future_completes_with_every_outcome() -> None:
    setting = Setting()
    done, late, failed, cancelled = (Probe(delay_ms=5) for _ in range(4))
    futures = [
        setting.purgatory.future(probe, [probe]) for probe in (done, late, failed, cancelled)
    ]
    done.force_complete()
    setting.purgatory.fail_for_key(failed, LookupError())
    cancelled.cancel()
    setting.pass_time(5)
    assert [future.result(0) for future in futures] == [
        Outcome.COMPLETED,
        Outcome.EXPIRED,
        Outcome.FAILED,
        Outcome.CANCELLED,
    ]


def test_immediate_completion_gives_a_done_future() -> None:
    assert Setting().purgatory.future(Probe(ready=True), ["key"]).done()


def test_cancelling_the_future_cancels_the_operation() -> None:
    setting = Setting()
    probe = Probe()
    future = setting.purgatory.future(probe, ["key"])
    assert future.cancel()
    assert probe.outcome is Outcome.CANCELLED
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(0)
    setting.assert_empty()


def test_abandoned_operations_have_done_futures() -> None:
    setting = Setting()
    future = setting.purgatory.future(Probe(), ["key"])
    setting.purgatory.close("leave")
    with pytest.raises(PurgatoryClosedError, match="'Manual' was closed, and left <Probe PENDING"):
        future.result(0)


WAYS_TO_WAIT: dict[str, dict[str, Any]] = {
    "for an event": {"keys": ["key"]},
    "for a value": {"thresholds": {"key": 1}},
    "for both": {"keys": ["key"], "thresholds": {"other": 1}},
}


@pytest.mark.parametrize("way", WAYS_TO_WAIT)
def test_abandoned_operation_notifies_all_waiters_once(way: str) -> None:
    setting = Setting()
    probe = Probe()
    told: list[Outcome] = []
    probe.call_when_completed(lambda: told.append(probe.outcome))  # before it is submitted
    future = setting.purgatory.future(probe, **WAYS_TO_WAIT[way])
    woken: list[Outcome] = []
    waiter = threading.Thread(target=lambda: woken.append(probe.wait(60)))
    waiter.start()
    while len(probe._op_listeners or ()) < 3:
        pass
    setting.purgatory.close("leave")
    waiter.join(60)
    assert told == woken == [probe.wait(60)] == [Outcome.PENDING]
    with pytest.raises(PurgatoryClosedError, match="'Manual' was closed, and left <Probe PENDING"):
        future.result(60)
    probe.call_when_completed(lambda: told.append(probe.outcome))  # after the end: at once
    assert told == [Outcome.PENDING] * 2
    assert probe.force_complete()
    assert told == [Outcome.PENDING] * 2
    setting.assert_empty()


def test_many_futures_are_waited_for_as_usual() -> None:
    setting = Setting()
    probes = [Probe() for _ in range(20)]
    futures = [setting.purgatory.future(probe, ["key"]) for probe in probes]
    thread = threading.Thread(target=lambda: [probe.force_complete() for probe in probes])
    thread.start()
    done, pending = concurrent.futures.wait(futures, timeout=60)
    thread.join()
    assert (len(done), len(pending)) == (20, 0)


def test_a_listener_that_raises_is_logged_and_stops_no_other() -> None:
    setting = Setting()
    probe = setting.submit(Probe(), "key")
    told: list[str] = []
    probe.call_when_completed(lambda: told.append("first"))
    probe.call_when_completed(lambda: told[99])
    probe.call_when_completed(lambda: told.append("third"))
    probe.force_complete()
    probe.call_when_completed(lambda: told.append("after"))
    assert told == ["first", "third", "after"]
