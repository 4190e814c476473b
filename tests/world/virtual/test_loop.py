"""The event loop in virtual time: asyncio's guarantees hold, and time is the world's."""

from __future__ import annotations

import asyncio
import math
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta

import pytest

from purgatory import AsyncPurgatory
from purgatory.virtual import DeadlockError, World, WorldError, WorldTimeoutError
from purgatory.virtual.network import NODE


def test_hours_of_sleep_take_no_real_time() -> None:
    async def application() -> float:
        before_s = time.monotonic()
        await asyncio.sleep(3_600)
        return time.monotonic() - before_s

    with World() as world:
        assert world.run(application()) == 3_600
        assert world.now_s == 3_600


def test_callbacks_run_in_the_order_in_which_they_became_ready() -> None:
    seen: list[int] = []

    async def application() -> None:
        for number in range(100):
            asyncio.get_running_loop().call_soon(seen.append, number)
        await asyncio.sleep(0)

    with World() as world:
        world.run(application())
    assert seen == list(range(100))


def _order_of_equal_timers(seed: int) -> list[int]:
    seen: list[int] = []

    async def application() -> None:
        loop = asyncio.get_running_loop()
        for number in range(20):
            loop.call_at(loop.time() + 1, seen.append, number)
        loop.call_at(loop.time() + 0.5, seen.append, -1)
        await asyncio.sleep(2)

    with World(seed) as world:
        world.run(application())
    return seen


def test_seed_determines_the_order_of_equal_timers() -> None:
    orders = [_order_of_equal_timers(seed) for seed in range(5)]
    assert all(order[0] == -1 and sorted(order[1:]) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in orders}) == 5
    assert orders == [_order_of_equal_timers(seed) for seed in range(5)]


@pytest.mark.parametrize("debug", [False, True])
def test_exception_of_a_callback_is_logged_as_by_asyncio(debug: bool) -> None:
    reports: list[dict[str, object]] = []

    def fail() -> None:
        raise ValueError("in a callback")

    async def application() -> None:
        loop = asyncio.get_running_loop()
        loop.set_debug(debug)
        loop.set_exception_handler(lambda _, context: reports.append(context))
        loop.call_soon(fail)
        loop.call_later(1, fail)
        await asyncio.sleep(2)

    with World() as world:
        world.run(application())
    assert [str(one["exception"]) for one in reports] == ["in a callback"] * 2
    assert all(str(one["message"]).startswith("Exception in callback") for one in reports)
    assert all(("source_traceback" in one) == debug for one in reports)


def test_timers_never_fire_early() -> None:
    came: list[tuple[float, float]] = []

    def note(due_s: float) -> None:
        came.append((due_s, asyncio.get_running_loop().time()))

    async def application() -> None:
        loop = asyncio.get_running_loop()
        for number in range(2_000):
            due_s = loop.time() + number * 0.000_123_7
            loop.call_at(due_s, note, due_s)
        await asyncio.sleep(1)

    with World() as world:
        world.run(application())
    assert len(came) == 2_000
    assert all(due_s <= now_s < due_s + 0.000_002 for due_s, now_s in came)


def test_cancelled_timer_never_fires() -> None:
    async def application() -> list[int]:
        loop, came = asyncio.get_running_loop(), list[int]()
        handles = [loop.call_later(1, came.append, number) for number in range(10)]
        for handle in handles[::2]:
            handle.cancel()
        await asyncio.sleep(2)
        return came

    with World() as world:
        assert sorted(world.run(application())) == [1, 3, 5, 7, 9]


def test_deadlock_is_an_error_with_the_stacks_of_waiters() -> None:
    async def wait_in_vain(never: asyncio.Event) -> None:
        await never.wait()

    async def application() -> None:
        await asyncio.gather(wait_in_vain(asyncio.Event()), wait_in_vain(asyncio.Event()))

    with World() as world, pytest.raises(DeadlockError) as raised:
        world.run(application())
    assert str(raised.value).count("in wait_in_vain\n    await never.wait()") == 2


def test_timeout_of_a_world_is_an_error_with_stacks() -> None:
    async def tick_for_ever() -> None:
        while True:
            await asyncio.sleep(1)

    with World() as world:
        with pytest.raises(WorldTimeoutError, match=r"not done at 60 s[^$]*in tick_for_ever"):
            world.run(tick_for_ever(), timeout="1min")
        assert world.now_s == 60
        assert world.run(asyncio.sleep(0, "goes on")) == "goes on"


@pytest.mark.parametrize("sleep_s", [7_200, 172_800])
def test_timeout_expires_on_time_however_late_the_next_timer(sleep_s: float) -> None:
    with World() as world:
        with pytest.raises(WorldTimeoutError, match="not done at 60 s"):
            world.run(asyncio.sleep(sleep_s), timeout="1min")
        assert world.now_s == 60


@pytest.mark.timeout(60)
def test_spinning_program_times_out() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with World() as world:
        with pytest.raises(WorldTimeoutError, match=r"not done at 0\.1 s[^$]*in spin"):
            world.run(spin(), timeout="100ms")
        assert world.now_s == pytest.approx(0.1, abs=0.000_02)
        assert world.run(asyncio.sleep(0, "goes on")) == "goes on"


def test_spinning_program_sees_time_pass() -> None:
    async def spin() -> float:
        until_s = time.monotonic() + 0.1
        while time.monotonic() < until_s:
            await asyncio.sleep(0)
        return until_s

    with World() as world:
        world.run(spin())
        assert world.now_s == pytest.approx(0.1, abs=0.001)


def test_executor_call_does_not_block_the_loop() -> None:
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(time.monotonic())

    def block() -> tuple[float, bool]:
        before_s = time.monotonic()
        time.sleep(5)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return time.monotonic() - before_s, True
        return time.monotonic() - before_s, False

    async def application() -> tuple[tuple[float, bool], int]:
        ticking = asyncio.create_task(tick())
        result = await asyncio.to_thread(block)
        ticking.cancel()
        return result, len(ticks)

    with World() as world:
        (slept_s, has_no_loop), ticked = world.run(application())
    assert slept_s == pytest.approx(5)
    assert has_no_loop
    assert ticked == 5


def test_results_from_an_executor_arrive_at_their_time() -> None:
    async def application() -> tuple[float, float]:
        loop, notified = asyncio.get_running_loop(), asyncio.Event()

        def job() -> None:
            time.sleep(5)
            loop.call_soon_threadsafe(notified.set)
            time.sleep(5)

        called = asyncio.create_task(asyncio.to_thread(job))
        await notified.wait()
        told_s = world.now_s
        await called
        return told_s, world.now_s

    with World() as world:
        told_s, called_s = world.run(application())
    assert told_s == pytest.approx(5, abs=0.01)
    assert called_s == pytest.approx(10, abs=0.01)


def test_exception_of_an_executor_is_raised() -> None:
    async def application() -> None:
        await asyncio.to_thread(lambda: 1 // 0)

    with World() as world, pytest.raises(ZeroDivisionError):
        world.run(application())


def test_a_purgatory_waits_in_the_worlds_time() -> None:
    async def application() -> str:
        async with AsyncPurgatory("test") as purgatory:
            try:
                return await purgatory.wait(["never"], until=lambda: "", timeout=3_600)
            except TimeoutError:
                return "timed out"

    async def answered() -> float:
        async with AsyncPurgatory("test") as purgatory:
            answers: list[str] = []
            asyncio.get_running_loop().call_later(7, answers.append, "here")
            asyncio.get_running_loop().call_later(8, purgatory.notify, "key")
            await purgatory.wait(["key"], until=lambda: answers, timeout=60)
            return asyncio.get_running_loop().time()

    with World() as world:
        assert world.run(application()) == "timed out"
        assert 3_600 <= world.now_s < 3_600.002
        before_s = world.now_s
        world.run(answered())
        assert world.now_s - before_s == pytest.approx(8)


def test_world_is_entered_once_and_restores_the_state_before_it() -> None:
    async def go_on() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            left.append(True)

    async def start() -> None:
        asyncio.get_running_loop().create_task(go_on())
        await asyncio.sleep(1)

    left: list[bool] = []
    with World() as world:
        world.run(start())
        with pytest.raises(WorldError, match="another virtual world"), World():
            pass
    assert left == [True]
    with pytest.raises(WorldError, match="entered once"), world:
        pass
    with pytest.raises(WorldError, match="was left"):
        world.at("1s", print)
    with World() as other:
        assert other.run(asyncio.sleep(0, 1)) == 1


def test_signal_calls_its_handler() -> None:
    async def serve() -> float:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(15, stop.set)
        await stop.wait()
        return world.now_s

    with World() as world:
        world.at("90s", world.signal, 15)
        assert world.run(serve()) == 90


def test_signal_handler_runs_in_the_context_that_set_it() -> None:
    nodes: list[str] = []

    async def application() -> None:
        with world.node("billing"):
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGTERM, lambda: nodes.append(NODE.get())
            )
        world.signal(signal.SIGTERM)
        await asyncio.sleep(1)

    with World() as world:
        world.run(application())
    assert nodes == ["billing"]


def test_timer_at_infinity_never_fires() -> None:
    async def application() -> float:
        for_ever = asyncio.create_task(asyncio.sleep(math.inf))
        handle = asyncio.get_running_loop().call_at(math.inf, int)
        async with asyncio.timeout(math.inf):
            await asyncio.sleep(5)
        handle.cancel()
        for_ever.cancel()
        await asyncio.wait([for_ever])
        assert handle.when() == math.inf
        return time.monotonic()

    with World() as world:
        world.run(application())
        assert world.now_s == 5


def test_endless_wait_of_the_last_task_is_a_deadlock() -> None:
    with World() as world, pytest.raises(DeadlockError, match="sleep"):
        world.run(asyncio.sleep(math.inf))


def _raise(error: BaseException) -> None:
    raise error


def test_exception_of_an_abandoned_executor_call_is_logged() -> None:
    async def application() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            await loop.run_in_executor(None, _raise, StopIteration(3))
        with pytest.raises(SystemExit):
            await loop.run_in_executor(None, _raise, SystemExit(3))

    with World() as world:
        world.run(application())


def test_waits_with_a_timeout_take_virtual_time() -> None:
    async def application() -> list[float]:
        began_s, seen = time.monotonic(), []
        assert not await asyncio.to_thread(threading.Event().wait, 5)
        seen.append(time.monotonic() - began_s)
        with pytest.raises(queue.Empty):
            await asyncio.to_thread(queue.Queue[int]().get, timeout=3)
        seen.append(time.monotonic() - began_s)
        assert not threading.Semaphore(0).acquire(timeout=1)
        seen.append(time.monotonic() - began_s)
        return seen

    with World() as world:
        assert world.run(application()) == pytest.approx([5, 8, 9], abs=0.01)


def test_wait_for_another_thread_is_a_deadlock() -> None:
    async def later() -> int:
        return 1

    async def application() -> None:
        loop = asyncio.get_running_loop()
        future = asyncio.run_coroutine_threadsafe(later(), loop)
        with pytest.raises(DeadlockError, match="allow=\\['threads'\\]"):
            future.result()
        assert await asyncio.wrap_future(future) == 1

    with World() as world:
        world.run(application())


def test_error_while_a_world_closes_hides_no_earlier_one() -> None:
    async def stubborn() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(10)

    kept: list[asyncio.Task[None]] = []

    async def application() -> None:
        kept.append(asyncio.create_task(stubborn()))
        kept[0]._log_destroy_pending = False  # type: ignore[attr-defined]
        await asyncio.sleep(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised, World() as world:
        world.run(application())
    assert "when the world was left: not done at" in raised.value.__notes__[0]
    kept[0].get_coro().close()


def test_world_waits_for_an_allowed_thread() -> None:
    def work(future: asyncio.Future[int], loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(future.set_result, sum(range(100_000)))

    async def application() -> int:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        threading.Thread(target=work, args=(future, loop)).start()
        result: int = await future
        return result

    with World(allow=["threads"]) as world:
        assert world.run(application()) == sum(range(100_000))
        with pytest.raises(DeadlockError):
            world.run(_for_ever())


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are eager tasks since Python 3.12")
def test_eager_tasks_are_numbered_as_other_tasks() -> None:
    async def work(number: int) -> int:
        if number % 2:
            await asyncio.sleep(0.1)
        return number

    async def application() -> list[int]:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009
        tasks = [asyncio.create_task(work(number)) for number in range(10)]
        assert [task.done() for task in tasks] == [True, False] * 5
        assert await asyncio.gather(*tasks) == list(range(10))
        async with asyncio.TaskGroup() as group:
            group.create_task(work(1), name="one")
        return sorted(map(hash, tasks))

    with World() as world:
        numbers = world.run(application())
    assert max(numbers) < 100  # and no addresses


def test_a_world_takes_timedeltas() -> None:
    minute = timedelta(minutes=1)
    with World(seed=1) as world:
        world.network.latency(timedelta(milliseconds=2))
        rang: list[float] = []
        world.at(minute, lambda: rang.append(world.now_s))
        world.pass_time(2 * minute)
        assert (rang, str(world.network).split(",")[0]) == ([60], "latency 2ms")
        assert world.run(asyncio.sleep(1, "done"), timeout=minute) == "done"
        with pytest.raises(TimeoutError):
            world.run(asyncio.sleep(61), timeout=minute)
