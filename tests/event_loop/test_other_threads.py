"""Events from other threads: passed on to the loop, none lost, checked where the loop runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from purgatory import AsyncPurgatory
from tests.event_loop.conftest import Main, settle

Run = Callable[[Main[Any]], Any]


def test_no_notice_from_another_thread_is_lost(run_really: Run) -> None:
    async def main() -> list[int]:
        ends = [0] * 8

        def produce(number: int) -> None:
            for _ in range(200):
                ends[number] += 1
                purgatory.notify_threadsafe(number)

        async def consume(number: int) -> int:
            seen = 0

            def newer() -> int:
                return ends[number] if ends[number] > seen else 0

            while seen < 200:
                seen = await purgatory.wait([number], newer, timeout=30)
            return seen

        async with AsyncPurgatory("Fetch") as purgatory:
            threads = [threading.Thread(target=produce, args=(n,)) for n in range(8)]
            consumers = [asyncio.create_task(consume(n)) for n in range(8)]
            for thread in threads:
                thread.start()
            seen = await asyncio.gather(*consumers)
            for thread in threads:
                await asyncio.to_thread(thread.join)
            return list(seen)

    assert run_really(main) == [200] * 8


def test_a_value_told_by_another_thread_arrives(run_really: Run) -> None:
    async def main() -> int:
        async with AsyncPurgatory("Produce") as purgatory:
            wait = asyncio.create_task(purgatory.wait_for_threshold("hw", 100, timeout=30))
            await settle()

            def tell() -> None:
                for n in range(101):
                    purgatory.advance_threadsafe("hw", n)

            await asyncio.to_thread(tell)
            return await wait

    assert run_really(main) == 100


def test_conditions_are_checked_on_the_loops_thread_only(run_really: Run) -> None:
    async def main() -> set[int]:
        threads: set[int] = set()
        ready = False

        def until() -> bool:
            threads.add(threading.get_ident())
            return ready

        async with AsyncPurgatory("Fetch") as purgatory:
            wait = asyncio.create_task(purgatory.wait(["log"], until, timeout=30))
            await settle()
            ready = True
            await asyncio.to_thread(purgatory.notify_threadsafe, "log")
            await wait
        return threads

    assert run_really(main) == {threading.get_ident()}


def test_notify_from_another_thread_says_what_to_use() -> None:
    async def main() -> None:
        async with AsyncPurgatory("Fetch") as purgatory:
            for call in (
                lambda: purgatory.notify("log"),
                lambda: purgatory.advance("log", 1),
                lambda: purgatory.cancel_for_key("log"),
            ):
                with pytest.raises(RuntimeError, match="use notify_threadsafe"):
                    await asyncio.to_thread(call)

    asyncio.run(main())


def test_a_key_that_is_no_key_is_refused_where_it_is_told() -> None:
    async def main() -> None:
        async with AsyncPurgatory("Fetch") as purgatory:
            with pytest.raises(TypeError, match="must be hashable"):
                purgatory.notify_threadsafe(["log"])  # type: ignore[arg-type]

    asyncio.run(main())


def test_timeouts_come_by_the_machines_clock_and_never_early(run_really: Run) -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()

        async def expire(timeout: float) -> float:
            start_ns = purgatory.core.timer.clock.now_ns()
            with pytest.raises(TimeoutError):
                await purgatory.wait(["log"], lambda: False, timeout)
            return (purgatory.core.timer.clock.now_ns() - start_ns) / 1e9 - timeout

        assert loop.is_running()
        async with AsyncPurgatory("Fetch") as purgatory:
            return await asyncio.gather(*(expire(n / 1_000) for n in range(0, 60, 3)))

    late_s = run_really(main)
    assert min(late_s) >= 0
    assert max(late_s) < 5  # a loaded machine; the usual is 1 ms


def test_no_thread_is_started(run_really: Run) -> None:
    async def main() -> int:
        before = threading.active_count()
        async with AsyncPurgatory("Fetch") as purgatory:
            with pytest.raises(TimeoutError):
                await purgatory.wait(["log"], lambda: False, 0.01)
            return threading.active_count() - before

    assert run_really(main) == 0
