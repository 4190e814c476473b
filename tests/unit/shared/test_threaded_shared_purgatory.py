"""`ThreadedSharedPurgatory`: threads that wait, are interrupted, and are closed."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from purgatory.core.errors import PurgatoryClosedError
from purgatory.shared.relay import RelayError
from purgatory.shared.shared_purgatory import ThreadedSharedPurgatory
from tests.unit.core.probe import core_logs
from tests.world.shared.misbehaving_relay import Hub, MisbehavingRelay

HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    """Collect what is logged."""
    with core_logs() as entries:
        yield entries


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def pair(
    values: dict[str, int], resync: float = HOUR_S
) -> tuple[ThreadedSharedPurgatory, MisbehavingRelay]:
    relay = MisbehavingRelay(Hub(Random(0)), "relay")
    return ThreadedSharedPurgatory("Fetch", relay, lambda keys: dict(values), resync), relay


def waits_of(purgatory: ThreadedSharedPurgatory) -> int:
    return purgatory.shared._waits.total()


def let_reads_end(purgatory: ThreadedSharedPurgatory) -> None:
    """Wait until no read is due: each checks the conditions, as a `notify` does."""

    async def look() -> None:
        changed = purgatory.shared._has_changed
        while changed.is_set() or not changed._waiters:
            await asyncio.sleep(0.001)

    purgatory._call(look())


# Each test's pool is the outer one: where an assertion fails, its threads end with the purgatory.


def test_ten_threads_wait_and_one_wakes_them() -> None:
    values = {"read": 7}
    purgatory, relay = pair(values)
    with ThreadPoolExecutor(10) as pool, purgatory:
        assert purgatory.wait_for_threshold("read", 7, 30) == 7
        waits = [pool.submit(purgatory.wait_for_threshold, "k", number) for number in range(1, 10)]
        done: list[bool] = []
        waits.append(pool.submit(purgatory.wait, ["c"], lambda: bool(done)))
        until(lambda: waits_of(purgatory) == 10)
        assert purgatory.advance("k", 4) == 4
        assert [wait.result(30) for wait in waits[:4]] == [4] * 4
        let_reads_end(purgatory)
        done.append(True)
        assert purgatory.notify("c") == 1
        assert waits[9].result(30) is True
        assert purgatory.advance("k", 9) == 5
        assert [wait.result(30) for wait in waits[4:9]] == [9] * 5
        with pytest.raises(TimeoutError, match="'other' to reach 1"):
            purgatory.wait_for_threshold("other", 1, 0.05)
        until(lambda: not relay._watched)
    assert relay.state.name == "closed"
    assert relay.times_closed == 1


def test_arguments_are_those_of_the_other() -> None:
    relay = MisbehavingRelay(Hub(Random(0)), "relay")
    with pytest.raises(ValueError, match="resync must be more than 0 seconds"):
        ThreadedSharedPurgatory("Fetch", relay, lambda keys: {}, 0)
    purgatory, relay = pair({})
    with purgatory:
        with pytest.raises(TypeError, match="a key that processes share is a str"):
            purgatory.advance(7, 1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="policy"):
            purgatory.close("drop")  # type: ignore[arg-type]
        assert relay.state.name == "live"


def test_a_read_may_block_and_is_called_by_one_thread_at_a_time() -> None:
    reading = threading.Lock()
    threads: set[int] = set()

    def read(keys: list[str]) -> dict[str, int | None]:
        assert reading.acquire(blocking=False)
        try:
            threads.add(threading.get_ident())
            time.sleep(0.01)
            return dict.fromkeys(keys, 1)
        finally:
            reading.release()

    relay = MisbehavingRelay(Hub(Random(0)), "relay")
    with ThreadedSharedPurgatory("Fetch", relay, read, 0.02) as purgatory:
        with ThreadPoolExecutor(10) as pool:
            list(pool.map(lambda n: purgatory.wait_for_threshold(f"k{n % 20}", 1, 30), range(60)))
        assert purgatory.shared.read_failures == 0
    assert threading.get_ident() not in threads


def test_a_thread_that_is_interrupted_leaves_nothing() -> None:
    purgatory, relay = pair({})
    with purgatory:
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                purgatory.wait_for_threshold("k", 1)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: waits_of(purgatory) == 1)
        assert thread.ident is not None
        interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc
        interrupt(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
        # The interrupt is raised once the thread runs: waking the condition of all futures lets it.
        for future in _futures_of(purgatory):
            with future._condition:
                future._condition.notify_all()
        thread.join(30)
        assert [type(error) for error in raised] == [KeyboardInterrupt]
        until(lambda: not (waits_of(purgatory) or relay._watched))
        purgatory.shared._check()


def _futures_of(purgatory: ThreadedSharedPurgatory) -> list[Any]:
    """The futures that threads wait for."""
    import gc
    from concurrent.futures import Future

    return [one for one in gc.get_objects() if type(one) is Future and not one.done()]


@pytest.mark.parametrize("pending", ["fail", "leave", "expire"])
def test_a_threaded_purgatory_closes_while_threads_wait(pending: Any) -> None:
    purgatory, relay = pair({})
    with ThreadPoolExecutor(10) as pool, purgatory:
        waits = [pool.submit(purgatory.wait_for_threshold, f"k{n % 3}", 1) for n in range(10)]
        until(lambda: waits_of(purgatory) == 10)
        assert purgatory.close(pending) == 10
        expected = TimeoutError if pending == "expire" else PurgatoryClosedError
        for wait in waits:
            with pytest.raises(expected):
                wait.result(30)
        assert purgatory.close() == 0
        for call in (purgatory.wait_for_threshold, purgatory.advance):
            with pytest.raises(PurgatoryClosedError, match="'Fetch' was closed"):
                call("k", 1)
    assert not (relay._watched or relay._tasks or waits_of(purgatory))


def test_threads_that_call_while_it_closes_get_a_response() -> None:
    for _ in range(20):
        purgatory, _relay = pair({})
        began = threading.Barrier(5)

        def call(purgatory: ThreadedSharedPurgatory, began: threading.Barrier) -> None:
            began.wait(30)
            with suppress(PurgatoryClosedError):
                while True:
                    purgatory.wait_for_threshold("k", 1, 60)

        def close(purgatory: ThreadedSharedPurgatory, began: threading.Barrier) -> None:
            began.wait(30)
            purgatory.close()

        with ThreadPoolExecutor(5) as pool:
            calls = [pool.submit(call, purgatory, began) for _ in range(3)]
            calls += [pool.submit(close, purgatory, began) for _ in range(2)]
            for one in calls:
                one.result(30)


def test_a_relay_that_is_refused_leaves_no_thread() -> None:
    class RefusedRelay(MisbehavingRelay):
        async def listen(self) -> None:
            raise RelayError("the password is wrong")

    relay = RefusedRelay(Hub(Random(0)), "relay")
    with pytest.raises(RelayError, match="the password is wrong"):
        ThreadedSharedPurgatory("Fetch", relay, lambda keys: {})
    assert relay.state.name == "closed"


def test_calls_on_its_own_thread_are_refused() -> None:
    purgatory, _relay = pair({})
    with purgatory:
        for call in (
            lambda: purgatory.advance("k", 1),
            lambda: purgatory.wait_for_threshold("k", 1),
            purgatory.close,
        ):
            with pytest.raises(RuntimeError, match="would wait for itself"):
                purgatory.wait(["k"], call, 30)


def test_a_relay_is_used_by_one_loop_after_the_other() -> None:
    relay = MisbehavingRelay(Hub(Random(0)), "relay")
    for number in range(3):
        with ThreadedSharedPurgatory("Fetch", relay, lambda keys: {"k": 1}) as purgatory:
            assert purgatory.wait_for_threshold("k", 1, 30) == 1
            assert relay.state.name == "live"
        assert relay.times_closed == number + 1
    assert relay.counts.reconnects == 2


def test_every_coroutine_is_awaited(recwarn: pytest.WarningsRecorder) -> None:
    purgatory, _relay = pair({})
    purgatory.close()
    with pytest.raises(PurgatoryClosedError):
        purgatory.notify("k")
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]
    assert not asyncio.all_tasks(purgatory._loop)


def test_a_read_that_hangs_holds_up_no_other(logs: list[Any]) -> None:
    may_return, calls = threading.Event(), []

    def read(keys: list[str]) -> dict[str, int]:
        calls.append(keys)
        if keys == ["a"]:
            may_return.wait(60)
        return dict.fromkeys(keys, 1)

    relay = MisbehavingRelay(Hub(Random(0)), "relay")
    made = ThreadedSharedPurgatory("Fetch", relay, read, HOUR_S, read_timeout=0.2, batch=1)
    with ThreadPoolExecutor(2) as pool, made as purgatory:
        hanging = pool.submit(purgatory.wait_for_threshold, "a", 1)
        until(lambda: calls)
        assert purgatory.wait_for_threshold("b", 1, 30) == 1
        assert not hanging.done()
        assert [entry["event"] for entry in logs].count("read_failed") == 1
        assert purgatory.advance("a", 1) == 1
        assert hanging.result(30) == 1
        began_s = time.monotonic()
        purgatory.close()
        assert time.monotonic() < began_s + 20  # though the call has yet to return
        may_return.set()
    until(lambda: not any(reader.is_alive() for reader in made._readers))


def test_reads_that_never_return_are_bounded() -> None:
    may_return, calls = threading.Event(), []

    def read(keys: list[str]) -> dict[str, int]:
        calls.append(keys)
        may_return.wait(60)
        return dict.fromkeys(keys, 1)

    relay = MisbehavingRelay(Hub(Random(0)), "relay")
    made = ThreadedSharedPurgatory("Fetch", relay, read, 0.01, read_timeout=0.01)
    with ThreadPoolExecutor(1) as pool, made as purgatory:
        wait = pool.submit(purgatory.wait_for_threshold, "a", 1)
        until(lambda: purgatory.shared.read_failures >= 20)
        assert len(calls) == 8
        may_return.set()
        assert wait.result(30) == 1
