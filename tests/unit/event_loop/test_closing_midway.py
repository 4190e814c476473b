"""Closing on an event loop from odd places: in callbacks, by two tasks, cancelled and repeated."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Coroutine
from typing import Any

import pytest

from purgatory import AsyncPurgatory, DelayedOperation, Outcome, PurgatoryClosedError
from purgatory.core.closing import ClosePolicy
from purgatory.core.locks import LockLike
from purgatory.core.trampoline import MAX_DEPTH
from tests.unit.event_loop.conftest import new_purgatory, run_ready, run_virtually

OUTCOME_OF = {"expire": Outcome.EXPIRED, "fail": Outcome.FAILED}
POLICIES: tuple[ClosePolicy, ...] = ("expire", "fail", "leave")

every_policy = pytest.mark.parametrize("policy", POLICIES)


class Noted(DelayedOperation):
    """Never completes by itself; notes its callbacks."""

    def __init__(self, lock: LockLike | None = None) -> None:
        super().__init__(60_000, lock)
        self.calls: list[str] = []

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        self.calls.append("on_complete")

    def on_failure(self, error: BaseException) -> None:
        self.calls.append("on_failure")


class CheckElsewhere:
    """Another thread is the operation's server, until the end."""

    def __init__(self, operation: DelayedOperation) -> None:
        self._over = threading.Event()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._own, args=(operation,))
        self._thread.start()
        assert self._begun.wait(30)

    def _own(self, operation: DelayedOperation) -> None:
        operation._op_own([threading.get_ident()], unlocked=self._check)

    def _check(self) -> None:
        self._begun.set()
        assert self._over.wait(30)

    def end(self) -> None:
        self._over.set()
        self._thread.join(30)


def assert_empty(purgatory: AsyncPurgatory) -> None:
    assert purgatory.watched == purgatory.watched_keys == purgatory.num_delayed == 0
    purgatory.core._check()
    assert purgatory.core.timer.size == 0


async def assert_ended(submitted: asyncio.Task[Outcome], policy: ClosePolicy) -> None:
    """Assert that a task that waits for an operation ends as the policy says."""
    if policy == "leave":
        with pytest.raises(PurgatoryClosedError, match="'Fetch' was closed, and left"):
            await submitted
    else:
        assert await submitted is OUTCOME_OF[policy]


@every_policy
def test_concurrent_closes_both_wait_and_the_first_policy_counts(
    policy: ClosePolicy,
) -> None:
    async def main() -> None:
        purgatory, lock = new_purgatory(), threading.Lock()
        operation = Noted(lock)
        submitted = asyncio.create_task(purgatory.submit(operation, ["log"]))
        await run_ready()
        with lock if policy != "leave" else threading.Lock():
            closings = [
                asyncio.create_task(purgatory.aclose(chosen)) for chosen in (policy, "expire")
            ]
            await run_ready()
            assert [closing.done() for closing in closings] == [policy == "leave"] * 2
        assert await asyncio.gather(*closings) == [1, 0]
        await assert_ended(submitted, policy)
        assert_empty(purgatory)

    run_virtually(main)


@every_policy
def test_a_close_that_is_cancelled_midway_is_finished_by_the_next(policy: ClosePolicy) -> None:
    async def main() -> None:
        purgatory, lock = new_purgatory(), threading.Lock()
        operations = [Noted(lock), Noted()]
        tasks = [asyncio.create_task(purgatory.submit(one, ["log"])) for one in operations]
        await run_ready()
        lock.acquire()
        if policy == "leave":
            check = CheckElsewhere(operations[0])  # what leaving waits for
        closing = asyncio.create_task(purgatory.aclose(policy))
        await run_ready()
        assert not closing.done()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert not tasks[0].done()
        with pytest.raises(PurgatoryClosedError):
            await purgatory.wait(["log"], lambda: True)
        lock.release()
        if policy == "leave":
            check.end()
        again: ClosePolicy = "expire" if policy != "expire" else "fail"
        assert await purgatory.aclose(again) == 0  # how many there were, the first one knew
        for task in tasks:
            await assert_ended(task, policy)
        assert_empty(purgatory)

    run_virtually(main)


@every_policy
def test_a_close_with_a_time_limit_of_its_callers_can_be_repeated(policy: ClosePolicy) -> None:
    async def main() -> None:
        purgatory, lock = new_purgatory(), threading.Lock()
        submitted = asyncio.create_task(purgatory.submit(Noted(lock), ["log"]))
        await run_ready()
        with lock:
            if policy != "leave":
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1):
                        await purgatory.aclose(policy, timeout=60)
        await purgatory.aclose(policy)
        await assert_ended(submitted, policy)
        assert_empty(purgatory)

    run_virtually(main)


@every_policy
def test_unreleased_lock_delays_the_close_up_to_its_timeout(
    policy: ClosePolicy,
) -> None:
    async def main() -> None:
        purgatory, lock = AsyncPurgatory("Fetch"), threading.Lock()
        operation = Noted(lock)
        submitted = asyncio.create_task(purgatory.submit(operation, ["log"]))
        await run_ready()
        with lock:
            assert await purgatory.aclose(policy, timeout=0.02) == 1
            if policy == "leave":
                await assert_ended(submitted, policy)
            else:
                assert await submitted is Outcome.FAILED
                assert "while the operation's lock was taken" in str(operation.error)
        assert_empty(purgatory)

    asyncio.run(main())


@every_policy
def test_a_handler_that_waits_may_close_when_its_wait_ends(policy: ClosePolicy) -> None:
    async def main() -> None:
        purgatory = new_purgatory()
        others = [asyncio.create_task(purgatory.submit(Noted(), ["log"])) for _ in range(3)]

        async def handle() -> int:
            await purgatory.wait_for_threshold("log", 1)
            return await purgatory.aclose(policy)

        handler = asyncio.create_task(handle())
        await run_ready()
        purgatory.advance("log", 1)
        assert await handler == 3
        for other in others:
            await assert_ended(other, policy)
        assert_empty(purgatory)

    run_virtually(main)


@every_policy
def test_a_callback_may_have_a_task_close(policy: ClosePolicy) -> None:
    async def main() -> None:
        purgatory = new_purgatory()
        closings: list[asyncio.Task[int]] = []

        class ClosesBehind(Noted):
            def try_complete(self) -> bool:
                return purgatory.value("log") is not None and self.force_complete()

            def on_complete(self) -> None:
                closings.append(asyncio.create_task(purgatory.aclose(policy)))

        other = asyncio.create_task(purgatory.submit(Noted(), ["log"]))
        closer = asyncio.create_task(purgatory.submit(ClosesBehind(), thresholds={"log": 1}))
        await run_ready()
        assert purgatory.advance("log", 1) == 1
        assert await closer is Outcome.COMPLETED
        assert await closings[0] == 1
        await assert_ended(other, policy)
        assert_empty(purgatory)

    run_virtually(main)


@every_policy
@pytest.mark.parametrize("depth", [1, MAX_DEPTH, 3 * MAX_DEPTH])
def test_a_callback_may_close_the_core_however_deep_in_a_chain(
    policy: ClosePolicy, depth: int
) -> None:
    async def main() -> None:
        purgatory = new_purgatory()
        others = [Noted(), Noted(threading.Lock())]
        waits = [asyncio.create_task(purgatory.submit(other, ["log"])) for other in others]
        await run_ready()
        finished: list[list[str]] = []

        class Link(Noted):
            def on_complete(self) -> None:
                links.pop()
                if links:
                    links[-1].force_complete()
                else:
                    purgatory.core.close(policy, timeout=30)
                    finished.extend(other.calls for other in others)

        links = [Link() for _ in range(depth)]
        links[-1].force_complete()
        calls = {"expire": ["on_complete"], "fail": ["on_failure"], "leave": []}[policy]
        assert finished == [calls] * 2, "before the close returned"
        for wait in waits:
            await assert_ended(wait, policy)
        assert_empty(purgatory)
        assert await purgatory.aclose() == 0

    run_virtually(main)


@every_policy
def test_wait_cancelled_while_its_purgatory_closes_is_dropped(policy: ClosePolicy) -> None:
    async def main() -> None:
        purgatory, lock = new_purgatory(), threading.Lock()
        operation = Noted(lock)
        submitted = asyncio.create_task(purgatory.submit(operation, ["log"]))
        await run_ready()
        lock.acquire()
        if policy == "leave":
            check = CheckElsewhere(operation)  # what leaving waits for
        closing = asyncio.create_task(purgatory.aclose(policy))
        await run_ready()
        submitted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitted
        if policy == "leave":
            check.end()
        assert await closing == 1, "nobody had to give the lock back"
        assert operation.outcome is Outcome.CANCELLED
        assert operation.calls == []
        assert_empty(purgatory)

    run_virtually(main)


@every_policy
@pytest.mark.parametrize("leave_at_once", [False, True])
def test_wait_for_a_threshold_alone_ends_with_a_clear_error(
    policy: ClosePolicy, leave_at_once: bool
) -> None:
    async def main() -> None:
        purgatory = new_purgatory()
        told: list[Outcome] = []
        operation = Noted()
        operation.call_when_completed(lambda: told.append(operation.outcome))  # before it waits
        submitted = asyncio.create_task(purgatory.submit(operation, thresholds={"log": 1}))
        wait = asyncio.create_task(purgatory.wait_for_threshold("log", 1))
        if not leave_at_once:
            await run_ready()
        else:
            await asyncio.sleep(0)
        assert await purgatory.aclose(policy) == 2
        await assert_ended(submitted, policy)
        expected = TimeoutError if policy == "expire" else PurgatoryClosedError
        with pytest.raises(expected, match="'log' to reach 1"):
            await wait
        assert told == [OUTCOME_OF.get(policy, Outcome.PENDING)]
        assert operation.wait(0) is told[0]
        assert_empty(purgatory)

    run_virtually(main)


def test_a_close_in_a_task_group_ends_with_its_waits() -> None:
    async def main() -> list[type[BaseException]]:
        purgatory = new_purgatory()

        async def all_of_it() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(3):
                    group.create_task(purgatory.wait_for_threshold("log", 1 + number, 60))
                await run_ready()
                group.create_task(_drop(purgatory.aclose()))

        with pytest.raises(ExceptionGroup) as raised:
            await all_of_it()
        assert_empty(purgatory)
        errors = raised.value.exceptions
        assert len(set(map(id, errors))) == 3, "each has its own, with its own frames"
        return [type(error) for error in errors]

    assert run_virtually(main) == [PurgatoryClosedError] * 3


def test_an_error_that_ends_many_waits_does_not_gather_their_frames() -> None:
    async def main() -> list[int]:
        depths: list[int] = []

        async def handle() -> None:
            try:
                await purgatory.wait(["topic"], lambda: False)
            except LookupError as error:
                depths.append(len(traceback.extract_tb(error.__traceback__)))

        async with new_purgatory() as purgatory:
            handlers = [asyncio.create_task(handle()) for _ in range(50)]
            await run_ready()
            assert purgatory.fail_for_key("topic", LookupError("the topic was deleted")) == 50
            await asyncio.gather(*handlers)
        return depths

    depths = run_virtually(main)
    assert len(depths) == 50
    assert len(set(depths)) == 1


async def _drop(closing: Coroutine[Any, Any, int]) -> None:
    await closing
