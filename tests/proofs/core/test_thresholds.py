"""Waits for a value to reach a number: checked operations, costs, and leftovers."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from purgatory import DelayedOperation, Outcome, PurgatoryClosedError
from purgatory.core import operation as operation_module
from purgatory.core.watchers import ThresholdWatchers
from tests.unit.core.probe import Probe, Setting


def submit_at(setting: Setting, probe: Probe, thresholds: dict[Hashable, int]) -> Probe:
    setting.purgatory.try_complete_else_watch(probe, thresholds=thresholds)
    return probe


def test_advance_checks_only_the_operations_it_reaches() -> None:
    setting = Setting()
    probes = [submit_at(setting, Probe(ready=False), {"hw": n}) for n in (10, 20, 30)]
    for probe in probes:
        probe.calls.clear()
        probe.ready = True
    assert setting.purgatory.advance("hw", 9) == 0
    assert setting.purgatory.advance("hw", 20) == 2
    assert [probe.finished for probe in probes] == [["on_complete"], ["on_complete"], []]
    assert probes[2].calls == []
    assert setting.purgatory.advance("hw", 31) == 1
    setting.assert_empty()


@pytest.mark.parametrize("above", [0, 2**63 - 50, -(2**63)])
def test_reached_operations_complete_by_number_then_arrival(above: int) -> None:
    setting = Setting()
    done: list[int] = []

    class Noting(Probe):
        def __init__(self, place: int) -> None:
            super().__init__(ready=False)
            self.place = place

        def on_complete(self) -> None:
            super().on_complete()
            done.append(self.place)

    numbers = [30, 10, 20, 10, 40, 20]
    probes = [
        submit_at(setting, Noting(place), {"hw": above + number})
        for place, number in enumerate(numbers)
    ]
    for probe in probes:
        probe.ready = True
    assert setting.purgatory.advance("hw", above + 9) == 0
    setting.purgatory._check()
    assert setting.purgatory.advance("hw", above + 30) == 5
    assert done == [1, 3, 2, 5, 0]
    assert setting.purgatory.advance("hw", above + 40) == 1
    setting.assert_empty()


@pytest.mark.parametrize("number", [2**31, -(2**31), 2**62, -(2**62), 2**63 - 1, 1 - 2**63])
def test_a_value_one_below_a_threshold_checks_no_operation(number: int) -> None:
    setting = Setting()
    probe = submit_at(setting, Probe(), {"hw": number})
    checks = setting.purgatory.counters.checks
    assert setting.purgatory.advance("hw", number - 1) == 0
    assert setting.purgatory.counters.checks == checks
    probe.ready = True
    assert setting.purgatory.advance("hw", number) == 1


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**200])
def test_thresholds_and_values_beyond_64_bits_are_refused(number: int) -> None:
    setting = Setting()
    with pytest.raises(ValueError, match="the threshold of 'hw' must fit 64 bits"):
        submit_at(setting, Probe(), {"hw": number})
    with pytest.raises(ValueError, match="the value of 'hw' must fit 64 bits"):
        setting.purgatory.advance("hw", number)
    assert setting.purgatory.value("hw") is None
    setting.assert_empty()


def test_condition_over_several_keys_needs_the_last_one() -> None:
    setting = Setting()
    high_watermarks = {"p0": 0, "p1": 0, "p2": 0}

    class AllReached(Probe):
        def try_complete(self) -> bool:
            super().try_complete()
            return min(high_watermarks.values()) >= 5 and self.force_complete()

    operation = submit_at(setting, AllReached(), dict.fromkeys(high_watermarks, 5))
    for number, key in enumerate(high_watermarks):
        high_watermarks[key] = 7
        assert setting.purgatory.watched == 3
        assert setting.purgatory.advance(key, 7) == (number == 2)
    assert operation.outcome is Outcome.COMPLETED
    setting.assert_empty()


def test_reached_threshold_is_found_by_checks_not_advances() -> None:
    setting = Setting()
    probe = submit_at(setting, Probe(), {"hw": 10})
    assert setting.purgatory.advance("hw", 10) == 0
    probe.calls.clear()
    assert setting.purgatory.advance("hw", 11) == 0
    assert probe.calls == []
    probe.ready = True  # another reason: the leader changed, say
    assert setting.purgatory.check_and_complete("hw") == 1
    setting.assert_empty()


def test_key_calls_find_both_kinds_once_in_arrival_order() -> None:
    setting = Setting()
    purgatory = setting.purgatory
    any_event = setting.submit(Probe(), "log")
    at_ten = submit_at(setting, Probe(), {"log": 10})
    both = Probe()
    purgatory.try_complete_else_watch(both, ["log"], {"log": 5})
    at_one = submit_at(setting, Probe(), {"log": 1})
    assert (purgatory.watched, purgatory.watched_keys, purgatory.num_delayed) == (4, 1, 4)
    assert purgatory.cancel_for_key("log") == [any_event, at_ten, both, at_one]
    setting.assert_empty()


def test_value_between_check_and_watching_is_not_missed() -> None:
    setting = Setting()
    value = 0

    class Reached(Probe):
        def try_complete(self) -> bool:
            nonlocal value
            complete = value >= 10 and self.force_complete()
            if not self.calls:
                value = 10  # after the first check; its advance finds no operation
                setting.purgatory.advance("log", 10)
            self._note("try_complete")
            return complete

    assert setting.purgatory.try_complete_else_watch(Reached(), thresholds={"log": 10})
    setting.assert_empty()


def test_a_threshold_wait_expires() -> None:
    setting = Setting()
    probe = submit_at(setting, Probe(delay_ms=50), {"log": 10})
    setting.pass_time(50)
    assert probe.outcome is Outcome.EXPIRED
    setting.assert_empty()


def test_values_only_rise_until_they_are_forgotten() -> None:
    purgatory = Setting().purgatory
    purgatory.advance("log", 5)
    purgatory.advance("log", 3)
    assert purgatory.value("log") == 5
    purgatory.forget("log")
    purgatory.forget("log")
    assert purgatory.value("log") is None
    purgatory.advance("log", 0)
    assert purgatory.value("log") == 0


class Reaching(Probe):
    """Completes once the value of each of its keys is 10."""

    def __init__(self, setting: Setting, *keys: str) -> None:
        super().__init__()
        self.setting, self.keys = setting, keys

    def try_complete(self) -> bool:
        values = [self.setting.purgatory.value(key) for key in self.keys]
        return all(value is not None and value >= 10 for value in values) and self.force_complete()


def test_forgotten_value_is_waited_for_again() -> None:
    setting = Setting()
    purgatory = setting.purgatory
    both = submit_at(setting, Reaching(setting, "a", "b"), {"a": 10, "b": 10})
    purgatory.advance("a", 10)
    purgatory.forget("a")
    assert purgatory.advance("b", 10) == 0
    assert purgatory.advance("a", 9) == 0
    assert purgatory.advance("a", 10) == 1
    assert both.outcome is Outcome.COMPLETED
    setting.assert_empty()


def test_value_forgotten_in_its_advance_loses_no_operation() -> None:
    setting = Setting()
    purgatory = setting.purgatory
    first, second = Reaching(setting, "log"), Reaching(setting, "log")
    first.hooks["on_complete"] = lambda: purgatory.forget("log")
    for operation in (first, second):
        submit_at(setting, operation, {"log": 10})
    assert purgatory.advance("log", 10) == 1
    assert second.outcome is Outcome.PENDING
    assert purgatory.advance("log", 10) == 1
    setting.assert_empty()


def test_value_forgotten_before_a_retry_loses_no_operation() -> None:
    setting = Setting()
    purgatory = setting.purgatory
    lock = threading.Lock()
    operation = Reaching(setting, "log")
    operation._op_lock = lock
    submit_at(setting, operation, {"log": 10})
    with lock:
        purgatory.advance("log", 10)
    purgatory.forget("log")
    setting.pass_time(100)
    assert purgatory.advance("log", 10) == 1
    setting.assert_empty()


@pytest.mark.parametrize("value", ["abc", math.nan, math.inf, 1.0, True, None])
def test_value_that_is_no_integer_is_refused(value: Any) -> None:
    setting = Setting()
    purgatory = setting.purgatory
    waiting = submit_at(setting, Reaching(setting, "log"), {"log": 10})
    message = f"the value of 'log' must be an int, not {value!r}"
    with pytest.raises(TypeError, match=message):
        purgatory.advance("log", value)
    assert purgatory.value("log") is None
    assert waiting.outcome is Outcome.PENDING
    assert purgatory.advance("log", 10) == 1
    setting.assert_empty()


def test_integer_of_another_library_is_a_value_and_threshold() -> None:
    class WholeNumber:
        def __index__(self) -> int:
            return 10

    setting = Setting()
    purgatory = setting.purgatory
    ten: Any = WholeNumber()
    submit_at(setting, Reaching(setting, "log"), {"log": ten})
    assert purgatory.advance("log", ten) == 1
    assert purgatory.value("log") == 10


@pytest.mark.parametrize("call", ["value", "forget"])
def test_an_unhashable_key_has_no_value(call: str) -> None:
    with pytest.raises(TypeError, match=r"a key must be hashable, and \[\] \(list\) is not"):
        getattr(Setting().purgatory, call)([])


def test_wait_until_a_value_blocks_the_thread() -> None:
    setting = Setting()
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.append(setting.purgatory.wait_for_threshold("log", 3, timeout=60))
    )
    thread.start()
    while not setting.purgatory.num_delayed:
        pass
    setting.purgatory.advance("log", 2)
    setting.purgatory.advance("log", 4)
    thread.join(60)
    assert found == [4]
    assert setting.purgatory.wait_for_threshold("log", 0) == 4


def test_interrupted_wait_for_a_value_leaves_no_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setting = Setting()

    class Interrupted:
        def set(self) -> None:
            pass

        def wait(self, timeout_s: float) -> bool:
            assert setting.purgatory.num_delayed == 1
            raise KeyboardInterrupt

    monkeypatch.setattr(operation_module, "Wake", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        setting.purgatory.wait_for_threshold("log", 3)
    setting.assert_empty()


def test_a_threads_wait_ends_with_the_timeout_or_the_purgatory() -> None:
    setting = Setting()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            setting.purgatory.wait_for_threshold("log", 3, timeout=0.05)
        except (TimeoutError, PurgatoryClosedError) as error:
            errors.append(error)

    for end in (lambda: setting.pass_time(50), lambda: setting.purgatory.close("leave")):
        thread = threading.Thread(target=wait)
        thread.start()
        while not setting.purgatory.num_delayed:
            pass
        end()
        thread.join(60)
    assert list(map(type, errors)) == [TimeoutError, PurgatoryClosedError]
    assert "'log' to reach 3 (it is None)" in str(errors[0])


@pytest.mark.parametrize(
    ("thresholds", "message"),
    [
        ({"log": "10"}, "threshold of 'log' must be an int, not '10'"),
        ({"log": True}, "threshold of 'log' must be an int, not True"),
        ([("log", 10)], "thresholds must map keys to numbers"),
    ],
)
def test_an_invalid_threshold_is_refused_by_name(thresholds: Any, message: str) -> None:
    setting = Setting()
    with pytest.raises(TypeError, match=message):
        setting.purgatory.try_complete_else_watch(Probe(), thresholds=thresholds)
    setting.assert_empty()


def test_no_keys_and_no_thresholds_are_refused() -> None:
    with pytest.raises(ValueError, match="keys is empty"):
        Setting().purgatory.try_complete_else_watch(Probe(), thresholds={})


def test_an_advance_that_reaches_no_operation_looks_at_none() -> None:
    """Counted, not timed: the sorted numbers are looked at once, at their head."""
    watchers: ThresholdWatchers[DelayedOperation] = ThresholdWatchers()
    for number in range(1_000):
        watchers.add(Probe(), 10 + number)

    class Untouchable(dict[int, dict[int, Any]]):
        def pop(self, *_: object) -> Any:
            raise AssertionError("nobody is concerned")

    watchers.by_number = Untouchable(watchers.by_number)
    assert reached(watchers, 9) == []


def test_stale_thresholds_are_swept_out() -> None:
    watchers: ThresholdWatchers[DelayedOperation] = ThresholdWatchers()
    probes = [Probe() for _ in range(1_000)]
    for number, probe in enumerate(probes):
        watchers.add(probe, number)
    for number, probe in enumerate(probes[:990]):
        watchers.remove(probe, number)
        watchers.check()
    assert len(watchers.numbers) < 60
    assert reached(watchers, 2_000) == probes[990:]


def reached(watchers: ThresholdWatchers[DelayedOperation], value: int) -> list[DelayedOperation]:
    """Return whom ``value`` reaches, in order."""
    taken: list[DelayedOperation] = []
    watchers.pop_reached(value, taken)
    return taken


class AgainstAList(RuleBasedStateMachine):
    """The sorted numbers against a plain list that is searched."""

    @initialize()
    def start(self) -> None:
        self.watchers: ThresholdWatchers[DelayedOperation] = ThresholdWatchers()
        self.waiting: list[tuple[int, Probe]] = []

    @rule(number=st.integers(-5, 40))
    def add(self, number: int) -> None:
        probe = Probe()
        self.watchers.add(probe, number)
        self.waiting.append((number, probe))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.waiting:
            number, probe = data.draw(st.sampled_from(self.waiting))
            assert self.watchers.remove(probe, number)
            assert not self.watchers.remove(probe, number)
            self.waiting = [pair for pair in self.waiting if pair[1] is not probe]

    @rule(value=st.integers(-6, 41))
    def advance(self, value: int) -> None:
        expected = sorted(
            (pair for pair in self.waiting if pair[0] <= value), key=lambda pair: pair[0]
        )
        taken = reached(self.watchers, value)
        assert taken == [probe for _, probe in expected]
        self.waiting = [pair for pair in self.waiting if pair[0] > value]

    @invariant()
    def holds_the_same(self) -> None:
        self.watchers.check()
        found = [(number, id(probe)) for probe, number in self.watchers.pairs()]
        assert sorted(found) == sorted((number, id(probe)) for number, probe in self.waiting)
        assert bool(self.watchers) == bool(self.waiting)


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
