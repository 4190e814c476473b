"""Events from other threads: passed on to the loop, none lost, checked where the loop runs."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from purgatory import AsyncPurgatory
from purgatory.core.async_purgatory import MOST_IN_A_TURN
from tests.unit.core.probe import core_logs
from tests.unit.event_loop.conftest import Main, run_ready

Run = Callable[[Main[Any]], Any]


def test_notifications_from_other_threads_all_arrive(run_really: Run) -> None:
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


def test_a_value_reported_by_another_thread_arrives(run_really: Run) -> None:
    async def main() -> int:
        async with AsyncPurgatory("Produce") as purgatory:
            wait = asyncio.create_task(purgatory.wait_for_threshold("hw", 100, timeout=30))
            await run_ready()

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
            await run_ready()
            ready = True
            await asyncio.to_thread(purgatory.notify_threadsafe, "log")
            await wait
        return threads

    assert run_really(main) == {threading.get_ident()}


def test_notify_from_another_thread_raises_with_notify_threadsafe() -> None:
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


def test_an_unhashable_key_is_refused_where_it_is_notified() -> None:
    async def main() -> None:
        async with AsyncPurgatory("Fetch") as purgatory:
            with pytest.raises(TypeError, match="must be hashable"):
                purgatory.notify_threadsafe(["log"])  # type: ignore[arg-type]

    asyncio.run(main())


class ComparesBadly:
    """A key that can't be compared with any other: all of them have the same hash."""

    def __hash__(self) -> int:
        return hash("log")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no key of ours")


def on_a_thread(*calls: Callable[[], object]) -> None:
    """Make the calls on another thread, while the loop waits for it: all before it serves any."""

    def call_all() -> None:
        for call in calls:
            call()

    thread = threading.Thread(target=call_all)
    thread.start()
    thread.join(60)


def test_a_bad_notification_stops_none_of_those_after_it() -> None:
    async def main() -> tuple[list[int], list[str]]:
        async with AsyncPurgatory("Fetch") as purgatory:
            ends = [0, 0]
            waits = [
                asyncio.create_task(purgatory.wait(["log"], lambda: ends[0])),
                asyncio.create_task(purgatory.wait_for_threshold("hw", 5)),
                asyncio.create_task(purgatory.wait(["later"], lambda: ends[1])),
            ]
            beside = asyncio.create_task(purgatory.wait(["log"], lambda: False))
            await run_ready()
            ends[0] = 1
            with core_logs() as logs:
                on_a_thread(
                    lambda: purgatory.notify_threadsafe(ComparesBadly()),
                    lambda: purgatory.notify_threadsafe("log"),
                    lambda: purgatory.advance_threadsafe("hw", 9),
                )
                await asyncio.wait(waits[:2], timeout=30)
                await run_ready()
            ends[1] = 2
            on_a_thread(lambda: purgatory.notify_threadsafe("later"))
            await asyncio.wait(waits, timeout=30)
            assert not purgatory._notifications
            beside.cancel()
            return [wait.result() for wait in waits], [str(entry["event"]) for entry in logs]

    assert asyncio.run(main()) == ([1, 9, 2], ["note_failed"])


def test_a_value_that_is_no_number_is_refused_where_it_is_reported() -> None:
    async def main() -> None:
        async with AsyncPurgatory("Fetch") as purgatory:
            for value in ("7", None, math.nan, True):
                with pytest.raises((TypeError, ValueError), match="value"):
                    purgatory.advance_threadsafe("hw", value)  # type: ignore[arg-type]
            assert not purgatory._notifications

    asyncio.run(main())


def test_many_notifications_of_a_key_cause_one_check() -> None:
    async def main() -> list[int | None]:
        seen: list[int | None] = []
        async with AsyncPurgatory("Fetch") as purgatory:
            wait = asyncio.create_task(
                purgatory.wait(["log"], lambda: seen.append(purgatory.value("hw")))
            )
            await run_ready()
            seen.clear()
            on_a_thread(
                *[lambda: purgatory.notify_threadsafe("log")] * 3,
                lambda: purgatory.advance_threadsafe("hw", 7),
                *[lambda: purgatory.notify_threadsafe("log")] * 3,
            )
            await run_ready()
            wait.cancel()
        return seen

    assert asyncio.run(main()) == [None, 7]


def test_notifications_of_one_key_wait_as_one() -> None:
    async def main() -> tuple[int, int]:
        async with AsyncPurgatory("Fetch") as purgatory:
            on_a_thread(
                *[lambda: purgatory.notify_threadsafe("log")] * 1_000,
                *[partial(purgatory.advance_threadsafe, "hw", value) for value in range(1_000)],
            )
            waiting = len(purgatory._notifications)
            await run_ready()
            return waiting, purgatory.value("hw") or 0

    assert asyncio.run(main()) == (2, 999)


def test_a_turn_of_the_loop_handles_so_many_notifications() -> None:
    async def main() -> list[int]:
        left = []
        async with AsyncPurgatory("Fetch") as purgatory:
            keys = range(3 * MOST_IN_A_TURN)
            on_a_thread(*[partial(purgatory.notify_threadsafe, key) for key in keys])
            while purgatory._notifications:
                left.append(len(purgatory._notifications))
                await asyncio.sleep(0)
        return left

    left = asyncio.run(main())
    assert all(more - fewer <= 2 * MOST_IN_A_TURN for more, fewer in pairwise(left))
    assert len(left) > 1


def test_callbacks_of_the_loop_run_in_no_requests_context() -> None:
    request = ContextVar("request", default="none")
    seen: list[str] = []

    def until() -> bool:
        seen.append(request.get())
        return False

    async def ask(purgatory: AsyncPurgatory, name: str, timeout: float) -> None:
        request.set(name)
        with suppress(TimeoutError):
            await purgatory.wait(["log"], until, timeout)

    async def main() -> None:
        async with AsyncPurgatory("Fetch") as purgatory:
            asks = [asyncio.create_task(ask(purgatory, name, 0.01)) for name in "ab"]
            await run_ready()
            assert set(seen) == {"a", "b"}, "each is asked first in its own"
            seen.clear()
            on_a_thread(lambda: request.set("thread"), lambda: purgatory.notify_threadsafe("log"))
            await asyncio.gather(*asks)

    asyncio.run(main())
    assert set(seen) == {"none"}


def test_notifications_during_handling_are_handled() -> None:
    async def main() -> tuple[bool, bool]:
        ready = [False, False]
        async with AsyncPurgatory("Fetch") as purgatory:

            def first() -> bool:
                if ready[0] and not ready[1]:
                    ready[1] = True  # told by another thread in the middle of this check
                    on_a_thread(lambda: purgatory.notify_threadsafe("second"))
                return ready[0]

            waits = (
                asyncio.create_task(purgatory.wait(["first"], first, timeout=30)),
                asyncio.create_task(purgatory.wait(["second"], lambda: ready[1], timeout=30)),
            )
            await run_ready()
            ready[0] = True
            on_a_thread(lambda: purgatory.notify_threadsafe("first"))
            await run_ready()
            assert purgatory.counters.missed_wakeups == 0
            return waits[0].done(), waits[1].done()

    assert asyncio.run(main()) == (True, True)


def test_timeouts_expire_by_the_machines_clock_and_never_early(run_really: Run) -> None:
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
    assert max(late_s) < 30  # a loaded machine; the usual is 1 ms


def test_loops_purgatory_starts_no_thread(run_really: Run) -> None:
    async def main() -> int:
        before = threading.active_count()
        async with AsyncPurgatory("Fetch") as purgatory:
            with pytest.raises(TimeoutError):
                await purgatory.wait(["log"], lambda: False, 0.01)
            return threading.active_count() - before

    assert run_really(main) == 0
