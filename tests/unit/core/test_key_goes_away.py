"""A key that goes away: all that waits on it is completed, or failed."""

from __future__ import annotations

import threading

import pytest

from purgatory import Outcome
from tests.unit.core.probe import Probe, Setting


def test_complete_for_key_ignores_the_condition() -> None:
    setting = Setting()
    probes = [setting.submit(Probe(), "gone", "kept") for _ in range(3)]
    other = setting.submit(Probe(), "kept")
    assert setting.purgatory.complete_for_key("gone") == 3
    assert {probe.outcome for probe in probes} == {Outcome.COMPLETED}
    assert [probe.finished for probe in probes] == [["on_complete"]] * 3
    assert other.outcome is Outcome.PENDING
    assert setting.purgatory.complete_for_key("gone") == 0


def test_fail_for_key_fails_with_the_error() -> None:
    setting = Setting()
    probes = [setting.submit(Probe(), "gone") for _ in range(3)]
    error = ConnectionError("broker 2 died")
    assert setting.purgatory.fail_for_key("gone", error) == 3
    for probe in probes:
        assert probe.outcome is Outcome.FAILED
        assert probe.error is error
        assert probe.finished == ["on_failure"]
    setting.assert_empty()


def test_threshold_waits_are_completed_with_their_key_too() -> None:
    setting = Setting()
    probe = Probe()
    setting.purgatory.try_complete_else_watch(probe, thresholds={"log": 10})
    assert setting.purgatory.complete_for_key("log") == 1
    setting.assert_empty()


@pytest.mark.parametrize("ends", [Outcome.COMPLETED, Outcome.FAILED])
def test_a_retry_completes_an_operation_whose_lock_is_taken(ends: Outcome) -> None:
    setting = Setting()
    lock = threading.Lock()
    probe = setting.submit(Probe(lock=lock), "gone")
    with lock:
        if ends is Outcome.COMPLETED:
            setting.purgatory.complete_for_key("gone")
        else:
            setting.purgatory.fail_for_key("gone", LookupError())
        assert probe.outcome is Outcome.PENDING
    setting.pass_time(40)
    assert probe.outcome is ends
    setting.assert_empty()


def test_callbacks_do_not_overlap_a_check_that_is_under_way() -> None:
    setting = Setting()
    seen: list[Outcome] = []

    def complete_all_meanwhile() -> None:
        if setting.purgatory.watched:
            thread = threading.Thread(target=setting.purgatory.complete_for_key, args=("gone",))
            thread.start()
            thread.join(60)
            seen.append(probe.outcome)

    probe = Probe(hooks={"try_complete": complete_all_meanwhile})
    setting.submit(probe, "gone")
    assert seen == [Outcome.PENDING]  # handed to the thread that checks
    assert probe.outcome is Outcome.COMPLETED
    setting.assert_empty()


def test_fail_for_key_refuses_an_object_that_is_no_error() -> None:
    with pytest.raises(TypeError, match="error must be an exception, not 'broken'"):
        Setting().purgatory.fail_for_key("key", "broken")  # type: ignore[arg-type]
