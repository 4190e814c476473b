"""Handlers that are cancelled, time out or die: their operations leave every list at once."""

from __future__ import annotations

import asyncio
import gc
import re
import weakref
from pathlib import Path
from typing import Any

import pytest

from purgatory import AsyncPurgatory, Outcome
from tests.unit.event_loop.conftest import new_purgatory, run_ready, run_virtually
from tests.unit.event_loop.test_waiting import Flagged

DOCUMENT = Path(__file__).parents[3] / "docs/asyncio.md"


def documented(start: str) -> Any:
    """Return the function that a block of the document, which begins so, defines."""
    (block,) = re.findall(rf"```python\n({re.escape(start)}.*?)```", DOCUMENT.read_text(), re.S)
    defined: dict[str, Any] = {"AsyncPurgatory": AsyncPurgatory}
    exec(block, defined)
    return list(defined.values())[-1]


def assert_empty(purgatory: AsyncPurgatory) -> None:
    assert purgatory.watched == purgatory.watched_keys == purgatory.num_delayed == 0
    purgatory.core._check()


def test_a_cancelled_handler_takes_its_operation_off_every_list() -> None:
    async def main() -> Outcome:
        async with new_purgatory() as purgatory:
            operation = Flagged()
            handler = asyncio.create_task(purgatory.submit(operation, ["a", "b", "c"]))
            await run_ready()
            assert purgatory.watched == 3
            handler.cancel()
            await run_ready()
            assert_empty(purgatory)
            assert purgatory.core.timer.size == 0
            assert operation.calls == []
            with pytest.raises(asyncio.CancelledError):
                await handler
            return operation.outcome

    assert run_virtually(main) is Outcome.CANCELLED


def test_asyncio_timeout_ends_a_wait_before_its_own_timeout() -> None:
    async def main() -> None:
        async with new_purgatory() as purgatory:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await purgatory.wait(["log"], lambda: False, timeout=60)
            assert_empty(purgatory)
            assert purgatory.counters.outcomes["cancelled"] == 1

    run_virtually(main)


def test_a_task_group_that_fails_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with new_purgatory() as purgatory:

            async def handle_all() -> None:
                async with asyncio.TaskGroup() as group:
                    for n in range(100):
                        group.create_task(purgatory.wait_for_threshold("log", 1 + n, 60))
                    await run_ready()
                    assert purgatory.num_delayed == 100
                    raise LookupError("one of the handlers failed")

            with pytest.raises(ExceptionGroup):
                await handle_all()
            assert_empty(purgatory)

    run_virtually(main)


def test_cancellation_during_a_completion_is_not_swallowed() -> None:
    async def main() -> tuple[bool, Outcome]:
        async with new_purgatory() as purgatory:
            operation = Flagged()
            handler = asyncio.create_task(purgatory.submit(operation, ["log"]))
            await run_ready()
            operation.ready = True
            assert purgatory.notify("log") == 1  # completed, but the handler did not go on yet
            handler.cancel()
            await run_ready()
            assert_empty(purgatory)
            return handler.cancelled(), operation.outcome

    assert run_virtually(main) == (True, Outcome.COMPLETED)


def test_a_handler_cancelled_by_its_own_completion_ends() -> None:
    async def main() -> bool:
        async with new_purgatory() as purgatory:
            handlers: list[asyncio.Task[Outcome]] = []

            class CancelsItsHandler(Flagged):
                def on_complete(self) -> None:
                    handlers[0].cancel()

            operation = CancelsItsHandler()
            handlers.append(asyncio.create_task(purgatory.submit(operation, ["log"])))
            await run_ready()
            operation.ready = True
            purgatory.notify("log")
            await run_ready()
            assert_empty(purgatory)
            return handlers[0].cancelled()

    assert run_virtually(main)


def test_thousands_of_clients_that_vanish_leave_nothing_behind() -> None:
    async def main() -> None:
        async with new_purgatory() as purgatory:
            handlers = [
                asyncio.create_task(purgatory.wait(["log", n], lambda: False, timeout=30))
                for n in range(5_000)
            ]
            await run_ready()
            assert purgatory.watched == 10_000
            alive = weakref.WeakSet(purgatory.core._state.pending_operations())
            for handler in handlers:
                handler.cancel()
            await asyncio.gather(*handlers, return_exceptions=True)
            assert_empty(purgatory)
            assert purgatory.core.timer.size == 0
            handlers.clear()
            del handler
            await run_ready()  # the loop lets go of what gather returned
            gc.collect()
            assert not alive

    run_virtually(main)


def test_a_wait_on_a_loop_that_is_closed_leaves_the_lists() -> None:
    loop = asyncio.new_event_loop()
    started: list[AsyncPurgatory] = []

    async def wait() -> None:
        purgatory = AsyncPurgatory("Fetch")
        started.append(purgatory)
        await purgatory.wait(["log"], lambda: False, timeout=60)

    task = loop.create_task(wait())
    loop.call_later(0.02, loop.stop)
    loop.run_forever()
    (purgatory,) = started
    assert purgatory.num_delayed == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    assert_empty(purgatory)


@pytest.mark.parametrize("takers", [1, 2])
@pytest.mark.parametrize("comes_first", ["the item", "the cancellation"])
def test_cancelled_taker_leaves_the_item_to_the_next(takers: int, comes_first: str) -> None:
    """As the documents say to take: after the wait, which only looks."""
    take = documented("async def take(")

    async def main() -> str:
        async with new_purgatory() as purgatory:
            items: list[str] = []
            tasks = [asyncio.create_task(take(purgatory, items)) for _ in range(takers)]
            await run_ready()
            if comes_first == "the cancellation":
                tasks[0].cancel()
            items.append("one")
            purgatory.notify("items")
            tasks[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            taken: str = await (tasks[1] if takers == 2 else take(purgatory, items))
            assert items == []
            assert_empty(purgatory)
            return taken

    assert run_virtually(main) == "one"


def test_condition_that_takes_loses_the_item_of_a_cancelled_task() -> None:
    """The loss that the documents warn of: if this changes, they may promise more."""

    async def main() -> list[str]:
        async with new_purgatory() as purgatory:
            items: list[str] = []
            task = asyncio.create_task(
                purgatory.wait(["items"], until=lambda: items.pop() if items else None)
            )
            await run_ready()
            items.append("one")
            purgatory.notify("items")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return items

    assert "`until` must only look, and take nothing" in DOCUMENT.read_text()
    assert run_virtually(main) == []
