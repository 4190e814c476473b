"""Every public call of the purgatory, and every kind of bad input."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest

from purgatory import DelayedOperationPurgatory, OperationReusedError, Outcome, PurgatoryClosedError
from purgatory.core.keys import (
    GroupJoinKey,
    GroupSyncKey,
    Keys,
    MemberKey,
    TopicKey,
    TopicPartitionOperationKey,
)
from tests.unit.core.probe import LONG_MS, Probe, Setting
from timer import TimerClosedError


@pytest.fixture
def setting() -> Setting:
    return Setting()


# Waiting and waking.


def test_an_operation_whose_condition_holds_never_waits(setting: Setting) -> None:
    operation = Probe(ready=True)
    assert setting.purgatory.try_complete_else_watch(operation, ["a", "b"])
    assert operation.calls == ["try_complete", "on_complete"]
    assert setting.purgatory.counters.outcomes["immediate"] == 1
    setting.assert_empty()


@pytest.mark.parametrize("number_of_keys", [1, 2, 3, 1_000])
def test_a_submission_checks_twice_however_many_keys_there_are(
    setting: Setting, number_of_keys: int
) -> None:
    operation = setting.submit(Probe(), *range(number_of_keys))
    assert operation.calls == ["try_complete", "try_complete"]
    assert setting.purgatory.watched == number_of_keys
    assert setting.purgatory.watched_keys == number_of_keys
    assert setting.purgatory.num_delayed == 1


@pytest.mark.pure
def test_the_second_check_finds_a_change_during_the_watching(
    setting: Setting,
) -> None:
    operation = Probe()
    watch = setting.purgatory._state.watchers.watch

    def watch_and_then(operation: Probe) -> None:
        watch(operation)
        operation.ready = True  # an event whose check came before the watching

    setting.purgatory._state.watchers = _Watching(setting.purgatory._state.watchers, watch_and_then)  # type: ignore[assignment]
    assert setting.purgatory.try_complete_else_watch(operation, ["a"])
    assert operation.calls == ["try_complete", "try_complete", "on_complete"]
    setting.assert_empty()


class _Watching:
    """Watch lists whose ``watch`` is another one."""

    def __init__(self, watchers: object, watch: Callable[..., None]) -> None:
        self._watchers = watchers
        self.watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watchers, name)


def test_a_key_given_twice_counts_once(setting: Setting) -> None:
    operation = setting.submit(Probe(), "a", "b", "a")
    assert setting.purgatory.watched == 2
    operation.ready = True
    assert setting.purgatory.check_and_complete("a") == 1
    setting.assert_empty()


def test_keys_can_be_any_iterable(setting: Setting) -> None:
    given: list[Keys] = [["a"], ("a",), {"a"}, {"a": 1}, iter("a"), (c for c in "a")]
    for number, keys in enumerate(given):
        setting.purgatory.try_complete_else_watch(Probe(), keys)
        assert setting.purgatory.watched == number + 1


def test_keys_of_kafka_never_meet_across_types(setting: Setting) -> None:
    keys: list[Hashable] = [
        TopicPartitionOperationKey("x", 0),
        TopicKey("x"),
        MemberKey("x", "m"),
        GroupJoinKey("x"),
        GroupSyncKey("x"),
    ]
    operations = [setting.submit(Probe(ready=False), key) for key in keys]
    assert setting.purgatory.watched_keys == len(keys)
    for key, operation in zip(keys, operations, strict=True):
        operation.ready = True
        assert setting.purgatory.check_and_complete(key) == 1
        assert operation.is_completed
    setting.assert_empty()


class Place(NamedTuple):
    topic: str
    partition: int


def test_keys_equal_other_named_tuples_whichever_stands_first() -> None:
    ours: Any = TopicPartitionOperationKey("x", 0)
    theirs: Any = Place("x", 0)
    plain: Any = ("x", 0)
    assert ours == theirs
    assert theirs == ours
    assert ours in {theirs}
    assert theirs in {ours}
    assert ours != plain
    assert plain != ours


def test_check_counts_only_the_operations_it_completed(setting: Setting) -> None:
    operations = [setting.submit(Probe(), "a", number) for number in range(5)]
    for number in (1, 3):
        operations[number].ready = True
    assert setting.purgatory.check_and_complete("nobody's") == 0
    assert setting.purgatory.check_and_complete("a") == 2
    assert setting.purgatory.check_and_complete("a") == 0
    assert setting.purgatory.counters.checks == 5 + 3
    assert [operation.is_completed for operation in operations] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert setting.purgatory.watched == 6


def test_operations_are_checked_in_arrival_order(setting: Setting) -> None:
    order: list[int] = []
    for number in range(10):
        operation = Probe(hooks={"on_complete": partial(order.append, number)})
        setting.submit(operation, "a").ready = True
    setting.purgatory.check_and_complete("a")
    assert order == list(range(10))


def test_operations_are_compared_by_identity_alone(
    setting: Setting,
) -> None:
    class Alike(Probe):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

        def __bool__(self) -> bool:
            return False

        def __len__(self) -> int:
            return 0

    first, second = setting.submit(Alike(), "a", "b"), setting.submit(Alike(), "a")
    assert setting.purgatory.watched == 3
    second.ready = True
    assert setting.purgatory.check_and_complete("a") == 1
    assert (first.is_completed, second.is_completed) == (False, True)
    assert setting.purgatory.cancel_for_key("b") == [first]
    setting.assert_empty()


def test_a_time_out_of_zero_or_less_expires_at_once(setting: Setting) -> None:
    for delay_ms in (0, -5):
        operation = setting.submit(Probe(delay_ms), "a")
        assert operation.outcome is Outcome.EXPIRED
    setting.assert_empty()


def test_an_operation_expires_at_its_time_and_not_before(setting: Setting) -> None:
    operation = setting.submit(Probe(100), "a", "b")
    setting.pass_time(99)
    assert not operation.is_completed
    setting.pass_time(1)
    assert operation.finished == ["on_complete", "on_expiration"]
    assert setting.purgatory.counters.outcomes["expired"] == 1
    assert setting.purgatory.counters.missed_wakeups == 0
    setting.assert_empty()


def test_condition_without_an_event_is_found_at_expiry(setting: Setting) -> None:
    operation = setting.submit(Probe(100), "a")
    operation.ready = True
    setting.pass_time(100)
    assert operation.outcome is Outcome.COMPLETED
    assert operation.finished == ["on_complete"]
    assert setting.purgatory.counters.missed_wakeups == 1
    setting.assert_empty()


def test_operations_without_a_timer_do_not_expire() -> None:
    setting = Setting(timer_enabled=False)
    operation = setting.submit(Probe(100), "a")
    assert setting.timer.size == 0
    setting.pass_time(LONG_MS)
    assert not operation.is_completed
    operation.ready = True
    assert setting.purgatory.check_and_complete("a") == 1
    setting.assert_empty()


def test_cancel_for_key_removes_operations_from_lists_and_timer(setting: Setting) -> None:
    both, a, b = (setting.submit(Probe(), *keys) for keys in [("a", "b", "c"), ("a",), ("b",)])
    assert setting.purgatory.cancel_for_key("a") == [both, a]
    assert [operation.outcome for operation in (both, a, b)] == [
        Outcome.CANCELLED,
        Outcome.CANCELLED,
        Outcome.PENDING,
    ]
    assert both.finished == a.finished == []
    assert setting.purgatory.cancel_for_key("a") == []
    assert setting.purgatory.cancel_for_key("nobody's") == []
    assert (setting.purgatory.watched, setting.timer.size) == (1, 1)
    assert setting.purgatory.counters.outcomes["cancelled"] == 2


def test_an_operation_may_be_completed_before_it_is_submitted(setting: Setting) -> None:
    operation = Probe()
    operation.force_complete()
    assert not setting.purgatory.try_complete_else_watch(operation, ["a"])
    assert operation.calls == ["on_complete"]
    setting.assert_empty()


def test_oldest_age_is_that_of_the_first_pending_operation(setting: Setting) -> None:
    assert setting.purgatory.oldest_pending_ns == 0
    first = setting.submit(Probe(), "a")
    setting.pass_time(250)
    setting.submit(Probe(), "a")
    setting.pass_time(50)
    assert setting.purgatory.oldest_pending_ns == 300_000_000
    first.force_complete()
    assert setting.purgatory.oldest_pending_ns == 50_000_000


def test_oldest_age_excludes_operations_in_callbacks(setting: Setting) -> None:
    ages: list[int] = []
    ask: dict[str, Callable[[], object]] = {
        "on_complete": lambda: ages.append(setting.purgatory.oldest_pending_ns)
    }
    first = setting.submit(Probe(hooks=ask), "a")
    setting.pass_time(250)
    second = setting.submit(Probe(hooks=ask), "a")
    setting.pass_time(50)
    first.force_complete()
    second.force_complete()
    assert ages == [50_000_000, 0]


def test_sizes_are_read_without_comparing_keys(setting: Setting) -> None:
    class Asked(str):
        asked = 0

        def __hash__(self) -> int:
            Asked.asked += 1
            return super().__hash__()

    for name in "abc":
        both = Probe()
        setting.purgatory.try_complete_else_watch(both, [Asked(name)], {Asked(name): 1})
    Asked.asked = 0
    purgatory = setting.purgatory
    assert (purgatory.watched_keys, purgatory.watched, purgatory.num_delayed) == (3, 3, 3)
    assert purgatory.oldest_pending_ns == 0
    assert Asked.asked == 0


def test_the_observer_is_called_once_for_each_outcome() -> None:
    told: list[tuple[str, str, int]] = []
    setting = Setting(
        on_completed=lambda operation, label, wait_ns: told.append(
            (type(operation).__name__, label, wait_ns)
        )
    )
    setting.submit(Probe(ready=True), "a")
    setting.submit(Probe(100), "a")
    forced, cancelled = setting.submit(Probe(), "a"), setting.submit(Probe(), "a")
    setting.pass_time(50)
    forced.force_complete()
    cancelled.cancel()
    setting.pass_time(50)
    setting.submit(Probe(), "a")
    setting.purgatory.close("fail")
    assert told == [
        ("Probe", "immediate", 0),
        ("Probe", "completed", 50_000_000),
        ("Probe", "cancelled", 50_000_000),
        ("Probe", "expired", 100_000_000),
        ("Probe", "failed", 0),
    ]


def test_counters_add_up_and_are_copies(setting: Setting) -> None:
    setting.submit(Probe(ready=True), "a")
    before = setting.purgatory.counters
    setting.submit(Probe(), "a").force_complete()
    after = setting.purgatory.counters
    assert sum(before.outcomes.values()) == 1
    assert sum(after.outcomes.values()) == 2
    for outcome, histogram in after.waits.items():
        assert sum(histogram.counts) == after.outcomes[outcome]


# Bad input.


def test_an_object_that_is_no_operation_is_refused(setting: Setting) -> None:
    for wrong in (None, "operation", object(), Probe):
        with pytest.raises(TypeError, match="operation must be a DelayedOperation") as info:
            setting.purgatory.try_complete_else_watch(wrong, ["a"])  # type: ignore[arg-type]
        assert repr(wrong) in str(info.value)


@pytest.mark.parametrize("keys", [[], (), set(), {}, iter(())], ids=lambda it: type(it).__name__)
def test_submission_without_keys_is_refused(setting: Setting, keys: Keys) -> None:
    with pytest.raises(ValueError, match="keys is empty"):
        setting.purgatory.try_complete_else_watch(Probe(), keys)


@pytest.mark.parametrize("key", ["topic-0", b"topic-0"])
def test_a_single_string_is_not_taken_for_many_keys(setting: Setting, key: Any) -> None:
    with pytest.raises(TypeError, match="not the single") as info:
        setting.purgatory.try_complete_else_watch(Probe(), key)
    assert f"use [{key!r}]" in str(info.value)


@pytest.mark.parametrize("key", [["list"], {"a": 1}, {1}, ("a", ["nested"]), bytearray(b"x")])
def test_an_unhashable_key_is_refused_by_value(setting: Setting, key: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: setting.purgatory.try_complete_else_watch(Probe(), ["fine", key]),
        lambda: setting.purgatory.check_and_complete(key),
        lambda: setting.purgatory.cancel_for_key(key),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="a key must be hashable") as info:
            call()
        assert repr(key) in str(info.value)
    setting.assert_empty()


def test_operation_with_refused_keys_may_be_resubmitted(setting: Setting) -> None:
    operation = Probe()
    with pytest.raises(ValueError, match="keys is empty"):
        setting.purgatory.try_complete_else_watch(operation, [])
    with pytest.raises(TypeError, match="hashable"):
        setting.purgatory.try_complete_else_watch(operation, [["a"]])  # type: ignore[list-item]
    assert operation.calls == []
    setting.purgatory.try_complete_else_watch(operation, ["a"])
    assert setting.purgatory.watched == 1


def test_the_error_of_an_iterable_of_keys_reaches_the_caller(setting: Setting) -> None:
    def keys() -> Iterator[Hashable]:
        yield "a"
        raise LookupError("broken on purpose")

    operation = Probe()
    with pytest.raises(LookupError, match="broken on purpose"):
        setting.purgatory.try_complete_else_watch(operation, keys())
    assert operation.calls == []
    setting.assert_empty()


def test_a_used_operation_is_refused(setting: Setting) -> None:
    waiting = setting.submit(Probe(), "a")
    done = setting.submit(Probe(ready=True), "a")
    for operation in (waiting, done):
        calls = list(operation.calls)
        for purgatory in (setting.purgatory, Setting().purgatory):
            with pytest.raises(OperationReusedError, match="was submitted before") as info:
                purgatory.try_complete_else_watch(operation, ["b"])
            assert repr(operation) in str(info.value)
            assert "'Manual'" in str(info.value)
        assert operation.calls == calls
    assert setting.purgatory.watched == 1
    setting.purgatory._check()


class Entering(Probe):
    """An operation whose repr waits for another thread's call of the purgatory."""

    purgatory: DelayedOperationPurgatory

    def __repr__(self) -> str:
        return repr(EnteringKey(self.purgatory))


class EnteringKey(list[int]):
    """A key that can't be one; its repr waits for another thread's call of the purgatory."""

    def __init__(self, purgatory: DelayedOperationPurgatory) -> None:
        super().__init__()
        self.purgatory = purgatory

    def __repr__(self) -> str:
        checking = threading.Thread(target=self.purgatory.check_and_complete, args=("z",))
        checking.start()
        checking.join(60)
        return "locked" if checking.is_alive() else "not locked"


def test_repr_is_called_under_no_lock(setting: Setting) -> None:
    Entering.purgatory = setting.purgatory
    key: Any = EnteringKey(setting.purgatory)
    operation = Entering()
    setting.submit(operation, "a")
    full = DelayedOperationPurgatory("Full", reaper_enabled=False, max_pending=1)
    full.try_complete_else_watch(Probe(), ["a"])
    calls: list[Callable[[], object]] = [
        lambda: setting.submit(operation, "a"),
        lambda: setting.submit(Probe(), key),
        lambda: setting.purgatory.check_and_complete(key),
        lambda: setting.purgatory.advance(key, 1),
        lambda: setting.purgatory.advance("a", operation),  # type: ignore[arg-type]
        lambda: setting.purgatory.forget(key),
        lambda: setting.purgatory.fail_for_key(key, ValueError()),
        lambda: full.try_complete_else_watch(Entering(), ["a"]),
        lambda: setting.purgatory.close() and setting.submit(Entering(), "a"),
    ]
    for call in calls:
        with pytest.raises((TypeError, RuntimeError)) as info:
            call()
        assert "not locked" in str(info.value)


def test_operation_without_base_init_is_refused(setting: Setting) -> None:
    class Forgetful(Probe):
        def __init__(self) -> None:
            self.ready = False

    with pytest.raises(TypeError, match=r"Forgetful can't wait: its __init__ must call super\(\)"):
        setting.submit(Forgetful(), "a")
    setting.assert_empty()


def test_closed_purgatory_refuses_operations_with_an_error(setting: Setting) -> None:
    setting.purgatory.close()
    operation = Probe()
    with pytest.raises(PurgatoryClosedError, match="'Manual' was closed") as info:
        setting.purgatory.try_complete_else_watch(operation, ["a"])
    assert repr(operation) in str(info.value)
    assert setting.purgatory.counters.outcomes["rejected"] == 1
    assert operation.calls == []
    assert setting.purgatory.check_and_complete("a") == 0
    assert setting.purgatory.cancel_for_key("a") == []
    other = Setting()
    other.submit(operation, "a")
    assert other.purgatory.watched == 1, "a refused operation may go elsewhere"


@pytest.mark.parametrize("policy", ["EXPIRE", "", None, 3, ["expire"]], ids=repr)
def test_a_bad_close_policy_is_refused_and_closes_nothing(setting: Setting, policy: Any) -> None:
    operation = setting.submit(Probe(), "a")
    with pytest.raises(ValueError, match="expire, fail, leave") as info:
        setting.purgatory.close(policy)
    assert repr(policy) in str(info.value)
    setting.submit(Probe(), "a")
    assert not operation.is_completed


def test_submission_on_a_closed_timer_is_refused(
    setting: Setting,
) -> None:
    setting.timer.close()
    operation = Probe()
    with pytest.raises(TimerClosedError, match="'manual' was closed"):
        setting.purgatory.try_complete_else_watch(operation, ["a"])
    assert operation.outcome is Outcome.CANCELLED
    setting.assert_empty()


# Threads and their names.


def test_threads_are_named_after_their_purgatory_and_end_with_it() -> None:
    before = set(threading.enumerate())
    with DelayedOperationPurgatory("Produce", broker_id=7) as purgatory:
        operation = Probe(1)
        purgatory.try_complete_else_watch(operation, ["a"])
        assert operation.wait(30) is Outcome.EXPIRED
        started = set(threading.enumerate()) - before
        assert {thread.name for thread in started} == {
            "ExpirationReaper-7-Produce",
            "executor-Produce",
        }
        assert all(thread.daemon for thread in started)
        assert purgatory.owns_timer
    assert set(threading.enumerate()) == before


def test_a_timer_that_was_passed_in_is_not_closed(setting: Setting) -> None:
    assert not setting.purgatory.owns_timer
    setting.purgatory.close()
    task = setting.timer.call_later(1, list)
    assert setting.timer.size == 1
    task.cancel()
