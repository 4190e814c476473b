"""Closing a purgatory on an event loop: every wait ends, with a clear error."""

from __future__ import annotations

import asyncio
import threading

import pytest

from purgatory import AsyncPurgatory, Outcome, PurgatoryClosedError
from purgatory.core.closing import ClosePolicy
from tests.unit.event_loop.conftest import new_purgatory, run_ready, run_virtually
from tests.unit.event_loop.test_waiting import Flagged


@pytest.mark.parametrize(
    ("policy", "error", "calls"),
    [
        ("fail", PurgatoryClosedError, []),
        ("leave", PurgatoryClosedError, []),
        ("expire", TimeoutError, ["on_complete", "on_expiration"]),
    ],
)
def test_closing_ends_every_wait(
    policy: ClosePolicy, error: type[Exception], calls: list[str]
) -> None:
    async def main() -> list[str]:
        purgatory = new_purgatory()
        operation = Flagged()
        waits = [
            asyncio.create_task(purgatory.wait(["log"], lambda: False, timeout=60)),
            asyncio.create_task(purgatory.wait_for_threshold("log", 1)),
        ]
        submitted = asyncio.create_task(purgatory.submit(operation, ["log"]))
        await run_ready()
        assert await purgatory.aclose(policy) == 3
        for wait in waits:
            with pytest.raises(error):
                await wait
        if policy == "leave":
            with pytest.raises(PurgatoryClosedError, match="'Fetch' was closed, and left"):
                await submitted
        else:
            assert await submitted is (Outcome.EXPIRED if policy == "expire" else Outcome.FAILED)
        assert purgatory.watched == purgatory.num_delayed == 0
        return operation.calls

    assert run_virtually(main) == calls


def test_a_closed_purgatory_takes_nothing_and_closes_again() -> None:
    async def main() -> int:
        async with new_purgatory() as purgatory:
            pass
        with pytest.raises(PurgatoryClosedError, match="'Fetch' was closed"):
            await purgatory.wait(["log"], lambda: True)
        return await purgatory.aclose()

    assert run_virtually(main) == 0


def test_close_waits_for_a_users_lock_without_blocking_the_loop() -> None:
    async def main() -> None:
        lock = threading.Lock()

        class Guarded(Flagged):
            def __init__(self) -> None:
                super().__init__()
                self._op_lock = lock

        purgatory = AsyncPurgatory("Fetch")
        wait = asyncio.create_task(purgatory.submit(Guarded(), ["log"]))
        await run_ready()
        lock.acquire()
        closing = asyncio.create_task(purgatory.aclose())
        await run_ready()
        assert not closing.done()
        lock.release()
        assert await closing == 1
        assert await wait is Outcome.FAILED

    asyncio.run(main())


def test_an_unknown_policy_is_refused() -> None:
    async def main() -> None:
        async with new_purgatory() as purgatory:
            with pytest.raises(ValueError, match="'drop'"):
                await purgatory.aclose("drop")  # type: ignore[arg-type]

    run_virtually(main)


def test_another_loop_is_refused_with_advice() -> None:
    async def make() -> AsyncPurgatory:
        return AsyncPurgatory("Fetch")

    async def use(purgatory: AsyncPurgatory) -> None:
        with pytest.raises(RuntimeError, match="'Fetch' belongs to another event loop: make one"):
            await purgatory.wait(["log"], lambda: True)
        with pytest.raises(RuntimeError, match="'Fetch' belongs to another event loop: close it"):
            await purgatory.aclose()
        assert not purgatory.core.is_closed
        assert purgatory.core.close() == 0  # its loop is closed

    asyncio.run(use(asyncio.run(make())))


def test_a_closed_loop_can_not_be_notified() -> None:
    async def make() -> AsyncPurgatory:
        return AsyncPurgatory("Fetch")

    purgatory = asyncio.run(make())
    for _ in range(3):
        with pytest.raises(PurgatoryClosedError, match="its event loop was closed"):
            purgatory.notify_threadsafe("log")
        with pytest.raises(PurgatoryClosedError, match="its event loop was closed"):
            purgatory.advance_threadsafe("hw", 1)
    assert not purgatory._notifications
