"""A purgatory that is closed at a signal, before what handled it until then."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from purgatory import (
    AsyncPurgatory,
    DelayedOperationPurgatory,
    PurgatoryClosedError,
    close_on_signals,
)
from tests.unit.core.probe import core_logs
from tests.unit.event_loop.conftest import Main, new_purgatory, run_ready, run_virtually

Run = Callable[[Main[Any]], Any]
HEARD = signal.SIGUSR1
UNHANDLED = signal.SIGUSR2


@pytest.fixture(autouse=True)
def calls() -> Iterator[list[int]]:
    """Handle one signal as a server would, and note how often."""
    noted: list[int] = []
    before = signal.signal(HEARD, lambda number, frame: noted.append(number))
    yield noted
    signal.signal(HEARD, before)


def test_signal_ends_waits_on_a_loop_and_reaches_the_server(
    calls: list[int],
) -> None:
    async def main() -> None:
        async with new_purgatory() as purgatory:
            close_on_signals(purgatory, [HEARD])
            wait = asyncio.create_task(purgatory.wait(["log"], lambda: False))
            await run_ready()
            for _ in range(3):  # an impatient one
                signal.raise_signal(HEARD)
            assert calls == [HEARD] * 3
            assert not wait.done()  # a handler of a signal does nothing but ask
            await run_ready()
            with pytest.raises(PurgatoryClosedError):
                await wait

    run_virtually(main)
    signal.raise_signal(HEARD)  # its loop is closed: nothing to do
    assert calls == [HEARD] * 4


def test_a_loops_own_handlers_are_still_called(run_really: Run) -> None:
    async def main() -> None:
        heard = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(HEARD, heard.set)
        async with asyncio.timeout(30):
            async with AsyncPurgatory("Fetch") as purgatory:
                close_on_signals(purgatory, [HEARD])
                wait = asyncio.create_task(purgatory.wait(["log"], lambda: False))
                await run_ready()
                signal.raise_signal(HEARD)
                with pytest.raises(PurgatoryClosedError):
                    await wait
                await heard.wait()

    run_really(main)


def test_waits_on_threads_complete_at_a_signal(calls: list[int]) -> None:
    with DelayedOperationPurgatory("Fetch") as purgatory:
        close_on_signals(purgatory, [HEARD])
        ended = threading.Event()

        def wait() -> None:
            with pytest.raises(PurgatoryClosedError):
                purgatory.wait_for_threshold("log", 1)
            ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        while not purgatory.num_delayed:
            pass
        for _ in range(2):
            signal.raise_signal(HEARD)
        assert ended.wait(60)
        thread.join(60)
    assert calls == [HEARD] * 2


def test_unhandled_signal_keeps_its_default() -> None:
    before = signal.getsignal(UNHANDLED)
    with DelayedOperationPurgatory("Fetch") as purgatory:
        close_on_signals(purgatory, [UNHANDLED])
    assert signal.getsignal(UNHANDLED) is before is signal.SIG_DFL


def test_other_threads_hear_no_signal_and_change_no_handler() -> None:
    before = signal.getsignal(HEARD)
    with DelayedOperationPurgatory("Fetch") as purgatory:
        thread = threading.Thread(target=close_on_signals, args=(purgatory, [HEARD]))
        thread.start()
        thread.join(60)
    assert signal.getsignal(HEARD) is before


def replaced(logs: list[Any]) -> list[str]:
    return [one["signal"] for one in logs if one["event"] == "signal_handler_replaced"]


def test_a_handler_that_the_server_replaces_as_it_starts_is_logged(calls: list[int]) -> None:
    async def main() -> None:
        async with new_purgatory() as purgatory:
            close_on_signals(purgatory, [HEARD])
            await asyncio.sleep(2)  # all is well for now
            signal.signal(HEARD, lambda number, frame: calls.append(-number))
            await asyncio.sleep(60)
            assert purgatory.core.timer.size == 0

    with core_logs() as logs:
        run_virtually(main)
    assert replaced(logs) == ["SIGUSR1"]


def test_two_purgatories_that_close_at_one_signal_replace_nothing(calls: list[int]) -> None:
    async def main() -> None:
        async with new_purgatory() as first, new_purgatory() as second:
            close_on_signals(first, [HEARD])
            close_on_signals(second, [HEARD])
            await asyncio.sleep(60)
            signal.raise_signal(HEARD)
            assert calls == [HEARD]
            await run_ready()
            assert first.core.is_closed
            assert second.core.is_closed

    with core_logs() as logs:
        run_virtually(main)
    assert replaced(logs) == []


def test_the_servers_handler_is_called_even_if_closing_raises(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread_here(self: threading.Thread) -> None:
        raise BaseException("as gevent's BlockingSwitchOutError")

    with DelayedOperationPurgatory("Fetch") as purgatory, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread_here)
        close_on_signals(purgatory, [HEARD])
        with pytest.raises(BaseException, match="BlockingSwitchOutError"):
            signal.raise_signal(HEARD)
    assert calls == [HEARD]
