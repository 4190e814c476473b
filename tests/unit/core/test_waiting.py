"""A thread waits in the purgatory for a condition of its own: `wait`, and `delay_ms=None`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from purgatory import Outcome, PurgatoryClosedError, PurgatoryFullError, WaitCancelledError
from purgatory.core import operation as operation_module
from purgatory.core.outcome import FOREVER_MS
from tests.unit.core.probe import Probe, Setting, core_logs

LONG_S = 60


class Waiting:
    """A thread in `wait`, and how that ended."""

    def __init__(
        self,
        setting: Setting,
        until: Callable[[], object],
        timeout: float | timedelta | None = LONG_S,
    ) -> None:
        self.results: list[object] = []
        self.errors: list[BaseException] = []
        self._setting = setting
        self._until = until
        self._timeout = timeout
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()
        while not setting.purgatory.watched:
            pass

    def _wait(self) -> None:
        purgatory = self._setting.purgatory
        try:
            self.results.append(purgatory.wait(["log", "topic"], self._until, self._timeout))
        except Exception as error:
            self.errors.append(error)

    def join(self) -> None:
        self._thread.join(LONG_S)
        assert not self._thread.is_alive()
        self._setting.assert_empty()


@pytest.mark.parametrize("until", [False, None, 5])
def test_wait_refuses_a_condition_that_is_no_function(until: Any) -> None:
    with pytest.raises(TypeError, match=f"until must be a function, .* not {until!r}"):
        Setting().purgatory.wait(["a"], until, 0)


def test_wait_returns_the_conditions_true_result() -> None:
    setting = Setting()
    records: list[str] = []
    waiting = Waiting(setting, lambda: records)
    setting.purgatory.check_and_complete("log")
    assert waiting.results == []
    records.append("a record")
    setting.purgatory.check_and_complete("topic")
    waiting.join()
    assert waiting.results == [["a record"]]


def test_wait_returns_at_once_if_the_condition_holds() -> None:
    setting = Setting()
    assert setting.purgatory.wait(["log"], lambda: 5) == 5
    assert setting.purgatory.counters.outcomes["immediate"] == 1
    setting.assert_empty()


@pytest.mark.parametrize("timeout", [0.05, timedelta(milliseconds=50)], ids=repr)
def test_wait_raises_after_its_timeout(timeout: float | timedelta) -> None:
    setting = Setting()
    waiting = Waiting(setting, lambda: False, timeout)
    while not setting.timer.size:
        pass
    setting.pass_time(50)
    waiting.join()
    [error] = waiting.errors
    assert type(error) is TimeoutError
    assert "not within 0.05 s: the condition on ['log', 'topic']" in str(error)


@pytest.mark.parametrize("timeout", [0.0005, 0.05, 1, 50, 30_000])
def test_wait_takes_any_timeout_without_a_guess_of_its_unit(timeout: float) -> None:
    setting = Setting()
    with core_logs() as logs:
        assert setting.purgatory.wait(["a"], lambda: "there", timeout) == "there"
    assert logs == []


def test_wait_raises_on_cancellation_and_on_close() -> None:
    setting = Setting()
    waiting = Waiting(setting, lambda: False)
    assert len(setting.purgatory.cancel_for_key("log")) == 1
    waiting.join()
    closed = Waiting(setting, lambda: False, None)
    setting.purgatory.close()
    closed.join()
    assert [type(error) for error in (*waiting.errors, *closed.errors)] == [
        WaitCancelledError,
        PurgatoryClosedError,
    ]
    with pytest.raises(PurgatoryClosedError):
        setting.purgatory.wait(["log"], lambda: True)


def test_wait_raises_the_conditions_error_and_the_event_does_not() -> None:
    setting = Setting()
    broken: list[BaseException] = []

    def until() -> bool:
        if broken:
            raise broken[0]
        return False

    waiting = Waiting(setting, until)
    broken.append(OSError("the disk is full"))
    assert setting.purgatory.check_and_complete("log") == 0
    waiting.join()
    assert waiting.errors == broken


def test_wait_refuses_coroutine_functions_and_full_purgatories() -> None:
    setting = Setting(max_pending=1)

    async def until() -> bool:
        return True

    with pytest.raises(TypeError, match="pass a plain function"):
        setting.purgatory.wait(["log"], until)  # type: ignore[unused-coroutine]
    setting.submit(Probe(), "log")
    with pytest.raises(PurgatoryFullError):
        setting.purgatory.wait(["log"], lambda: False)
    assert setting.purgatory.num_delayed == 1


def test_an_interrupted_wait_leaves_no_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting()

    class Interrupted:
        def set(self) -> None:
            pass

        def wait(self, timeout_s: float) -> bool:
            assert setting.purgatory.num_delayed == 1
            raise KeyboardInterrupt

    monkeypatch.setattr(operation_module, "Wake", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        setting.purgatory.wait(["log"], lambda: False)
    setting.assert_empty()


def test_an_operation_with_delay_none_never_expires() -> None:
    setting = Setting()
    operation = setting.submit(Probe(None), "log")
    assert operation.delay_ms == FOREVER_MS
    assert "delay_ms=forever" in repr(operation)
    assert setting.timer.size == 0
    setting.pass_time(2**40)
    assert operation.outcome is Outcome.PENDING
    operation.ready = True
    assert setting.purgatory.check_and_complete("log") == 1
    setting.assert_empty()


def test_former_names_raise_with_the_new_ones() -> None:
    purgatory, operation = Setting().purgatory, Probe()
    with pytest.raises(AttributeError, match="complete_all is gone; use complete_for_key"):
        purgatory.complete_all  # noqa: B018
    with pytest.raises(AttributeError, match="fail_all is gone; use fail_for_key"):
        purgatory.fail_all  # noqa: B018
    with pytest.raises(AttributeError, match="on_settled is gone; use on_completed"):
        purgatory.on_settled = print
    with pytest.raises(AttributeError, match="call_when_settled is gone; use call_when_completed"):
        operation.call_when_settled  # noqa: B018
    with pytest.raises(TypeError, match=r"close\(pending=\) is gone; use policy="):
        purgatory.close(pending="leave")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"__init__\(on_settled=\) is gone; use on_completed="):
        type(purgatory)("Fetch", on_settled=print)  # type: ignore[call-arg]
    assert not purgatory.is_closed
