"""Pairs of calls on an event loop, in each state that a purgatory there may be in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Mapping
from inspect import isawaitable
from itertools import product
from typing import cast

import pytest

from purgatory import AsyncPurgatory, PurgatoryClosedError
from purgatory.shared.shared_purgatory import SharedPurgatory, ThreadedSharedPurgatory
from tests.proofs.drawn import draw, failure, seed
from tests.proofs.loop_calls import (
    ASYNC_CALLS,
    SHARED_CALLS,
    STATES,
    THREADED_CALLS,
    LoopCall,
    LoopScene,
    SharedScene,
    SilentRelay,
    Store,
)
from tests.proofs.test_calls import public_names

SHARE = 0.2


async def run_pair(scene: LoopScene, calls: list[LoopCall]) -> None:
    """Make the calls, the second one while the first one waits; see all to its end."""
    await scene.begin()
    tasks = []
    for call in calls:

        async def make(call: LoopCall = call) -> None:
            try:
                made = call.act(scene)
                if isawaitable(made):
                    await cast("Awaitable[object]", made)
            except (PurgatoryClosedError, RuntimeError):
                assert scene.on_loop.core.is_closed

        tasks.append(asyncio.create_task(make()))
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    await scene.finish()
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    scene.assert_over(sum(call.waits for call in calls))


def assert_pairs_end_well(
    kind: type[LoopScene], table: Mapping[str, LoopCall], share: float
) -> None:
    """Assert that all ends well after this share of all pairs."""
    pairs = {
        f"{state}: {first}, {second}": (state, first, second)
        for state, first, second in product(STATES, table, table)
    }
    with asyncio.Runner() as runner:
        for name in draw(pairs, share, kind.__name__):
            state, first, second = pairs[name]
            try:
                runner.run(run_pair(kind(state), [table[first], table[second]]))
            except Exception as error:
                command = f"PURGATORY_SEED={seed()} pytest {__file__}"
                raise AssertionError(
                    failure(f"purgatory, {kind.__name__}", f"{name}: {error!r}", command)
                ) from error


def test_two_calls_of_an_async_purgatory_end_well() -> None:
    assert_pairs_end_well(LoopScene, ASYNC_CALLS, SHARE)


def test_two_calls_of_a_shared_purgatory_end_well() -> None:
    assert_pairs_end_well(SharedScene, SHARED_CALLS, SHARE)


@pytest.mark.exhaustive
def test_all_pairs_of_calls_on_a_loop_end_well() -> None:
    assert_pairs_end_well(LoopScene, ASYNC_CALLS, 1)
    assert_pairs_end_well(SharedScene, SHARED_CALLS, 1)


def covered(table: Mapping[str, LoopCall]) -> set[str]:
    return {call.covers or name for name, call in table.items()}


def test_tables_have_each_name_of_purgatories_on_a_loop() -> None:
    async def make() -> tuple[AsyncPurgatory, SharedPurgatory]:
        return AsyncPurgatory("named"), SharedPurgatory("named", SilentRelay(), Store().read)

    on_loop, shared = asyncio.run(make())
    kinds = ((AsyncPurgatory, on_loop, ASYNC_CALLS), (SharedPurgatory, shared, SHARED_CALLS))
    for kind, made, table in kinds:
        missing = public_names(kind, made) - covered(table)
        assert not missing, f"tests/proofs/loop_calls.py lacks {missing} of {kind.__name__}"


def test_table_has_each_name_of_a_threaded_shared_purgatory() -> None:
    with ThreadedSharedPurgatory("named", SilentRelay(), Store().read) as made:
        missing = public_names(ThreadedSharedPurgatory, made) - THREADED_CALLS.keys()
    assert not missing, f"tests/proofs/loop_calls.py lacks {missing} of ThreadedSharedPurgatory"


@pytest.mark.parametrize("first", THREADED_CALLS)
def test_two_calls_of_a_threaded_shared_purgatory_end_well(first: str) -> None:
    with ThreadedSharedPurgatory("scene", SilentRelay(), Store().read) as shared:
        raised: list[BaseException] = []

        def make(name: str) -> None:
            try:
                THREADED_CALLS[name](shared)
            except (PurgatoryClosedError, TimeoutError):
                pass  # it was closed meanwhile
            except BaseException as error:
                raised.append(error)

        for second in THREADED_CALLS:
            threads = [threading.Thread(target=make, args=(name,)) for name in (first, second)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive(), f"{first} and {second} wait for ever"
        shared.close()
        assert not raised
        assert shared.shared.local.num_delayed == 0
    assert not shared._thread.is_alive()
