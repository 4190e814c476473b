"""The watched keys, and a check of all of them after events may have been missed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import AsyncPurgatory, DelayedOperation, DelayedOperationPurgatory, Outcome
from tests.unit.core.probe import LONG_MS, Logs, Probe, Setting


class Reaching(DelayedOperation):
    """Completes once the value of "t" is 5."""

    def __init__(self, purgatory: DelayedOperationPurgatory) -> None:
        super().__init__(LONG_MS)
        self.purgatory = purgatory

    def try_complete(self) -> bool:
        return (self.purgatory.value("t") or 0) >= 5 and self.force_complete()


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_keys_are_those_with_a_pending_operation(setting: Setting) -> None:
    purgatory = setting.purgatory
    assert purgatory.keys() == []
    one = setting.submit(Probe(), "a", ("b", 1), 3)
    two = setting.submit(Probe(), "a", "c")
    purgatory.try_complete_else_watch(Reaching(purgatory), thresholds={"t": 5})
    assert set(purgatory.keys()) == {"a", ("b", 1), 3, "c", "t"}
    assert len(purgatory.keys()) == purgatory.watched_keys == 5
    two.cancel()
    assert set(purgatory.keys()) == {"a", ("b", 1), 3, "t"}
    one.ready = True
    assert purgatory.check_and_complete(3) == 1
    assert purgatory.keys() == ["t"], "one that completed by one key waits on no other"
    purgatory.advance("t", 5)
    assert purgatory.keys() == []
    setting.assert_empty()


def test_keys_are_a_copy(setting: Setting) -> None:
    setting.submit(Probe(), *range(100))
    keys = setting.purgatory.keys()
    keys.clear()
    assert sorted(setting.purgatory.keys()) == list(range(100))  # type: ignore[type-var]


def test_expiry_and_close_drop_the_keys(setting: Setting) -> None:
    setting.submit(Probe(delay_ms=10), "a")
    setting.submit(Probe(), "b")
    setting.pass_time(11)
    assert setting.purgatory.keys() == ["b"]
    setting.purgatory.close()
    assert setting.purgatory.keys() == []
    assert setting.purgatory.check_all() == 0


def test_a_key_without_waits_has_a_value_and_is_not_watched(setting: Setting) -> None:
    setting.purgatory.advance("a", 7)
    assert setting.purgatory.keys() == []
    assert setting.purgatory.check_all() == 0
    assert setting.purgatory.value("a") == 7


def test_check_all_counts_each_completed_operation_once(setting: Setting) -> None:
    assert setting.purgatory.check_all() == 0
    operations = [setting.submit(Probe(), "all", number, -number) for number in range(1, 11)]
    for operation in operations[::2]:
        operation.ready = True  # nobody notified
    assert setting.purgatory.check_all() == 5
    assert [operation.is_completed for operation in operations] == [True, False] * 5
    assert setting.purgatory.check_all() == 0
    for operation in operations:
        operation.ready = True
    assert setting.purgatory.check_all() == 5
    assert all(operation.finished == ["on_complete"] for operation in operations)
    setting.assert_empty()


def test_check_all_leaves_thresholds_that_were_not_reached(setting: Setting) -> None:
    purgatory = setting.purgatory
    operation = Reaching(purgatory)
    purgatory.try_complete_else_watch(operation, thresholds={"t": 5})
    purgatory.advance("t", 4)
    assert purgatory.check_all() == 0
    purgatory._check()
    assert (operation.outcome, purgatory.keys()) == (Outcome.PENDING, ["t"])
    purgatory.advance("t", 5)
    assert operation.outcome is Outcome.COMPLETED
    setting.assert_empty()


def test_operations_may_be_submitted_while_all_are_checked(setting: Setting) -> None:
    purgatory = setting.purgatory
    added: list[Probe] = []

    def add() -> None:
        added.append(setting.submit(Probe(), f"added {len(added)}", "shared"))

    for number in range(20):
        setting.submit(Probe(ready=False, hooks={"on_complete": add}), number)
    for operation in purgatory.pending_ends(20)[0]:
        assert isinstance(operation, Probe)
        operation.ready = True
    assert purgatory.check_all() == 20
    assert len(added) == purgatory.num_delayed == 20
    assert purgatory.watched_keys == 21
    purgatory._check()


def test_raising_condition_does_not_stop_check_all(setting: Setting, logs: Logs) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    operations = [setting.submit(Probe(), number) for number in range(3)]
    operations[1].hooks["try_complete"] = fail
    for operation in operations:
        operation.ready = True
    setting.purgatory.check_all()
    assert operations[0].is_completed
    assert operations[2].is_completed
    assert operations[1].outcome is Outcome.FAILED
    assert logs
    setting.assert_empty()


def test_keys_may_be_read_while_threads_wait() -> None:
    purgatory = DelayedOperationPurgatory("Keys")
    stop = threading.Event()
    failures: list[BaseException] = []

    def repeat(call: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                call()
        except BaseException as error:
            failures.append(error)

    def come_and_go() -> None:
        operations = [Probe() for _ in range(20)]
        for number, operation in enumerate(operations):
            purgatory.try_complete_else_watch(operation, [number, "all"])
            operation.ready = number % 2 == 0
        purgatory.check_and_complete("all")
        for operation in operations:
            operation.cancel()

    calls: list[Callable[[], Any]] = [come_and_go, come_and_go, purgatory.keys, purgatory.check_all]
    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    stop.wait(0.3)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert purgatory.keys() == []
    purgatory._check()
    purgatory.close()


def test_check_all_checks_waiting_coroutines() -> None:
    async def main() -> None:
        async with AsyncPurgatory("Keys") as purgatory:
            ready: set[str] = set()

            def waiting(key: str) -> asyncio.Task[str | None]:
                return asyncio.create_task(
                    purgatory.wait([key, "all"], lambda: key if key in ready else None)
                )

            waits = {key: waiting(key) for key in "abc"}
            number = asyncio.create_task(purgatory.wait_for_threshold("n", 2))
            await asyncio.sleep(0)
            assert set(purgatory.keys()) == {"a", "b", "c", "all", "n"}
            assert purgatory.check_all() == 0
            ready.update("ab")
            assert purgatory.check_all() == 2
            assert [await waits["a"], await waits["b"]] == ["a", "b"]
            assert set(purgatory.keys()) == {"c", "all", "n"}
            with pytest.raises(RuntimeError, match="check_all was called on another thread"):
                await asyncio.to_thread(purgatory.check_all)
            waits["c"].cancel()
            purgatory.advance("n", 2)
            assert await number == 2
            await asyncio.sleep(0)
            assert purgatory.keys() == []

    asyncio.run(main())
