"""The loop's own timer moves the wheel: set to the next bucket, moved when an earlier one comes."""

from __future__ import annotations

import asyncio

import pytest

from purgatory import AsyncPurgatory, DelayedOperation
from tests.unit.event_loop.conftest import (
    LoopClock,
    VirtualLoop,
    block,
    new_purgatory,
    passed_s,
    run_ready,
    run_virtually,
    turns,
)


def test_ten_thousand_parked_waits_do_not_turn_the_loop() -> None:
    async def main() -> int:
        async with new_purgatory() as purgatory:
            waits = [
                asyncio.create_task(purgatory.wait(["log"], lambda: False, timeout=86_400))
                for _ in range(10_000)
            ]
            await run_ready()
            before = turns()
            await asyncio.sleep(3_600)
            turned = turns() - before
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            return turned

    # An hour: the sleep's own turn, and the few at which an upper wheel's bucket moves down.
    assert run_virtually(main) <= 3


def test_an_earlier_timeout_moves_the_loops_timer() -> None:
    async def main() -> list[tuple[str, float]]:
        ended: list[tuple[str, float]] = []

        async def expire(name: str, timeout: float) -> None:
            try:
                await purgatory.wait([name], lambda: False, timeout)
            except TimeoutError:
                ended.append((name, round(passed_s(), 2)))

        async with new_purgatory() as purgatory:
            tasks = [asyncio.create_task(expire("late", 60))]
            await asyncio.sleep(1)
            tasks.append(asyncio.create_task(expire("early", 2)))
            await run_ready()
            tasks.append(asyncio.create_task(expire("earliest", 0.5)))
            await asyncio.gather(*tasks)
        return ended

    assert run_virtually(main) == [("earliest", 1.5), ("early", 3.0), ("late", 60.0)]


def test_the_loops_timer_is_not_set_once_everything_is_over() -> None:
    async def main() -> bool:
        loop = asyncio.get_running_loop()
        async with new_purgatory() as purgatory:
            wait = asyncio.create_task(purgatory.wait_for_threshold("log", 1, timeout=60))
            await run_ready()
            purgatory.advance("log", 1)
            await wait
        return any(not handle.cancelled() for handle in loop._scheduled)  # type: ignore[attr-defined]

    assert not run_virtually(main)


def test_the_heartbeat_is_stale_only_when_a_bucket_is_overdue() -> None:
    async def main() -> list[float]:
        clock = LoopClock()
        ages: list[float] = []
        async with new_purgatory() as purgatory:
            reaper = purgatory.core.reaper
            assert reaper is not None

            def age_s() -> float:
                return (clock.now_ns() - reaper.last_advance_ns) / 1e9

            wait = asyncio.create_task(purgatory.wait(["log"], lambda: False, timeout=1))
            await asyncio.sleep(0.9)
            ages.append(age_s())
            block(10)  # a handler that blocks the loop for ten seconds
            ages.append(age_s())
            await asyncio.gather(wait, return_exceptions=True)
            ages.append(age_s())
        return ages

    idle, blocked, after = run_virtually(main)
    assert idle == after == 0
    assert blocked > 10


def test_interrupted_expiration_ends_the_run_and_loses_no_other() -> None:
    loop = VirtualLoop()
    expired: list[str] = []

    class Interrupting(DelayedOperation):
        def try_complete(self) -> bool:
            return False

        def on_expiration(self) -> None:
            expired.append("first")
            raise KeyboardInterrupt

    class Other(Interrupting):
        def on_expiration(self) -> None:
            expired.append("second")

    async def submit() -> AsyncPurgatory:
        purgatory = new_purgatory()
        purgatory.core.try_complete_else_watch(Interrupting(1_000), ["key"])
        purgatory.core.try_complete_else_watch(Other(1_000), ["key"])
        return purgatory

    try:
        purgatory = loop.run_until_complete(submit())
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.sleep(5))
        loop.run_until_complete(asyncio.sleep(5))
        assert sorted(expired) == ["first", "second"]
        loop.run_until_complete(purgatory.aclose())
    finally:
        loop.close()
