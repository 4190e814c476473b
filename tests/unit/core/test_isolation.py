"""An exception in one operation's callbacks stops no other, and leaves nothing half done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import structlog

from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome
from tests.unit.core.probe import Logs, Probe, Setting
from timer import InlineExecutor, SystemTimer

Trigger = Callable[[Setting, Probe], object]


class Broken(Exception):
    """Raised on purpose."""


def raises(error: BaseException) -> Callable[[], object]:
    """Return a hook that raises ``error``."""

    def hook() -> None:
        raise error

    return hook


def submit(setting: Setting, operation: Probe) -> None:
    setting.submit(operation, "key", "another")


def check(setting: Setting, operation: Probe) -> None:
    submit_without_hooks(setting, operation)
    operation.ready = True
    setting.purgatory.check_and_complete("key")


def force(setting: Setting, operation: Probe) -> None:
    submit_without_hooks(setting, operation)
    operation.force_complete()


def expire(setting: Setting, operation: Probe) -> None:
    submit_without_hooks(setting, operation)
    setting.pass_time(operation.delay_ms)


def close(setting: Setting, operation: Probe) -> None:
    submit_without_hooks(setting, operation)
    setting.purgatory.close("expire")


def submit_without_hooks(setting: Setting, operation: Probe) -> None:
    hooks, operation.hooks = operation.hooks, {}
    ready, operation.ready = operation.ready, False
    setting.submit(operation, "key", "another")
    operation.hooks, operation.ready = hooks, ready


FAULTS: list[tuple[str, Trigger, bool]] = [
    ("try_complete", submit, False),
    ("try_complete", check, False),
    ("try_complete", expire, False),
    ("try_complete", close, False),
    ("on_complete", submit, True),
    ("on_complete", check, True),
    ("on_complete", force, False),
    ("on_complete", expire, False),
    ("on_complete", expire, True),
    ("on_complete", close, False),
    ("on_expiration", expire, False),
    ("on_expiration", close, False),
]
"""The callback that raises, the call that leads to it, and whether the condition holds."""


def neighbours(setting: Setting) -> list[Probe]:
    return [setting.submit(Probe(1_000), "key", number) for number in range(3)]


def assert_neighbours_finish(setting: Setting, operations: list[Probe]) -> None:
    """Assert that those around a broken operation complete by an event, or expire."""
    if setting.purgatory.num_delayed:
        assert setting.purgatory.num_delayed == len(operations)
        for operation in operations[:2]:
            operation.ready = True
        setting.purgatory.check_and_complete("key")
        setting.pass_time(1_000)
        assert [operation.outcome for operation in operations] == [
            Outcome.COMPLETED,
            Outcome.COMPLETED,
            Outcome.EXPIRED,
        ]
    for operation in operations:
        assert operation.finished[0] == "on_complete"
    setting.assert_empty()


@pytest.mark.parametrize(("stage", "trigger", "ready"), FAULTS)
def test_a_callback_that_raises_fails_its_operation_and_no_other(
    stage: str, trigger: Trigger, ready: bool, logs: Logs
) -> None:
    setting = Setting()
    around = neighbours(setting)
    error = Broken(stage)
    operation = Probe(500, ready=ready, hooks={stage: raises(error)})
    trigger(setting, operation)
    assert operation.outcome is operation.wait(0) is Outcome.FAILED
    assert operation.error is error
    assert operation.finished[-1] == "on_failure"
    assert operation.calls.count(stage) >= 1
    assert len(operation.finished) == len(set(operation.finished)), "each callback once"
    counters = setting.purgatory.counters
    assert counters.outcomes["failed"] == 1
    assert {name: count for name, count in counters.callback_errors.items() if count} == {stage: 1}
    failures = [log for log in logs if log["event"] == "callback_failed"]
    assert [(log["stage"], log["purgatory"], log["exc_info"]) for log in failures] == [
        (stage, "Manual", error)
    ]
    assert failures[0]["operation"].startswith("<Probe ")
    assert_neighbours_finish(setting, around)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize(("stage", "trigger", "ready"), FAULTS)
def test_interrupt_fails_the_operation_and_reaches_the_caller(
    stage: str, trigger: Trigger, ready: bool, interrupt: type[BaseException]
) -> None:
    setting = Setting()
    around = neighbours(setting)
    error = interrupt()
    operation = Probe(500, ready=ready, hooks={stage: raises(error)})
    with pytest.raises(interrupt) as info:
        trigger(setting, operation)
    assert info.value is error
    assert operation.outcome is operation.wait(0) is Outcome.FAILED
    assert operation.error is error
    assert operation.finished[-1] == "on_failure"
    assert setting.purgatory.counters.outcomes["failed"] == 1
    if trigger is close:
        setting.purgatory.close("expire")
    assert_neighbours_finish(setting, around)


@pytest.mark.parametrize("interrupt", [Broken, KeyboardInterrupt])
def test_error_in_on_failure_keeps_the_first_error(interrupt: type[BaseException]) -> None:
    setting = Setting()
    around = neighbours(setting)
    first = Broken("first")
    operation = Probe(hooks={"on_complete": raises(first), "on_failure": raises(interrupt())})
    try:
        force(setting, operation)
    except KeyboardInterrupt:
        assert interrupt is KeyboardInterrupt
    assert operation.outcome is operation.wait(0) is Outcome.FAILED
    assert operation.error is first
    errors = setting.purgatory.counters.callback_errors
    assert errors["on_failure"] == (1 if interrupt is Broken else 0)
    assert_neighbours_finish(setting, around)


@pytest.mark.parametrize("interrupt", [Broken, KeyboardInterrupt])
def test_an_observer_that_raises_stops_no_operation(interrupt: type[BaseException]) -> None:
    told: list[DelayedOperation] = []

    def observe(operation: DelayedOperation, label: str, wait_ns: int) -> None:
        told.append(operation)
        if len(told) == 1:
            raise interrupt

    setting = Setting(on_completed=observe)
    around = neighbours(setting)
    operation = Probe()
    try:
        force(setting, operation)
    except KeyboardInterrupt:
        assert interrupt is KeyboardInterrupt
    assert operation.wait(0) is Outcome.COMPLETED, "the observer's fault is not the operation's"
    assert setting.purgatory.counters.outcomes["completed"] == 1
    assert_neighbours_finish(setting, around)
    assert told == [operation, *around]


def test_an_operation_whose_repr_raises_fails_like_any_other(logs: Logs) -> None:
    class Unspeakable(Probe):
        def __repr__(self) -> str:
            raise Broken("repr")

    setting = Setting()
    around = neighbours(setting)
    operation = Unspeakable(hooks={"on_complete": raises(Broken("on_complete"))})
    force(setting, operation)
    assert operation.outcome is Outcome.FAILED
    assert logs[0]["operation"] == "<Unspeakable whose repr raised Broken>"
    assert_neighbours_finish(setting, around)


def test_failing_log_stops_no_operation() -> None:
    def broken_log(*args: Any, **values: Any) -> NoReturn:
        raise BrokenPipeError("nobody reads the log")

    setting = Setting()
    around = neighbours(setting)
    structlog.configure(processors=[broken_log])
    at_check = Probe(hooks={"try_complete": raises(Broken())})
    check(setting, at_check)
    at_completion = Probe(hooks={"on_complete": raises(Broken()), "on_failure": raises(Broken())})
    force(setting, at_completion)
    missed = Probe(500, ready=True)
    expire(setting, missed)
    assert at_check.finished == ["on_failure"]
    assert at_completion.finished == ["on_complete", "on_failure"]
    assert missed.outcome is Outcome.COMPLETED
    assert setting.purgatory.counters.missed_wakeups == 1
    assert_neighbours_finish(setting, around)


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("error", [Broken, SystemExit])
def test_reaper_and_worker_survive_a_failing_callback(
    error: type[BaseException], inline: bool
) -> None:
    # With an inline executor, operations due during a submission run there, and
    # SystemExit leaves the call: so none shall be.
    timer = SystemTimer("shared", executor=InlineExecutor() if inline else None)
    with DelayedOperationPurgatory("Isolation", timer=timer) as purgatory:
        broken = []
        for stage in ("try_complete", "on_complete", "on_expiration", "on_failure"):
            operation = Probe(500)
            purgatory.try_complete_else_watch(operation, ["key"])
            if stage == "on_failure":
                operation.hooks["on_complete"] = raises(Broken())
            operation.hooks[stage] = raises(error())
            broken.append(operation)
        sound = Probe(500)
        purgatory.try_complete_else_watch(sound, ["key"])
        assert sound.wait(30) is Outcome.EXPIRED
        assert [operation.wait(30) for operation in broken] == [Outcome.FAILED] * 4
        assert purgatory.reaper is not None
        assert purgatory.reaper.is_alive
        purgatory._check()
    timer.close()


class Contrary:
    """A key that is like all others of its kind, until comparing it raises."""

    raises = False

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        if Contrary.raises:
            raise Broken("compared")
        return self is other


@pytest.mark.parametrize("by_number", [False, True])
@pytest.mark.parametrize("how", ["force_complete", "cancel", "expire"])
def test_operation_with_an_incomparable_key_still_completes(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, how: str, by_number: bool
) -> None:
    setting = Setting()
    first, key = Contrary(), Contrary()
    other = setting.submit(Probe(), first)
    operation = Probe(500)
    keys, thresholds = ([], {key: 1}) if by_number else ([key, "sound"], None)
    setting.purgatory.try_complete_else_watch(operation, keys, thresholds)
    monkeypatch.setattr(Contrary, "raises", True)
    if how == "expire":
        setting.pass_time(500)
    else:
        getattr(operation, how)()
    assert operation.wait(0) is not Outcome.PENDING
    assert setting.purgatory.num_delayed == setting.purgatory.watched == 1
    assert [entry["event"] for entry in logs] == ["key_failed"]
    monkeypatch.setattr(Contrary, "raises", False)
    assert setting.purgatory.check_and_complete(key) == 0
    setting.submit(Probe(ready=False), key).cancel()
    other.cancel()
    setting.assert_empty()


def test_raising_key_blocks_no_other_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setting = Setting()
    setting.submit(Probe(), Contrary())
    monkeypatch.setattr(Contrary, "raises", True)
    with pytest.raises(Broken, match="compared"):
        setting.submit(Probe(), Contrary())
    checking = threading.Thread(
        target=setting.purgatory.check_and_complete, args=("a",), daemon=True
    )
    checking.start()
    checking.join(30)
    assert not checking.is_alive()
    assert setting.purgatory.num_delayed == setting.purgatory.watched == 1
