"""A read that hangs is given up, logged, and holds up no other; a wait without time reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

import pytest

from purgatory.shared.shared_purgatory import SharedPurgatory
from purgatory.virtual import World
from tests.unit.core.probe import core_logs
from tests.world.shared.misbehaving_relay import Hub, MisbehavingRelay

HOUR_S = 3_600.0


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    """Collect what is logged."""
    with core_logs() as entries:
        yield entries


class HangingStore:
    """Reads of some keys hang, perhaps whether they are cancelled or not."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.hanging: set[str] = set()
        self.ignores_cancels = False
        self.reads: list[list[str]] = []

    async def read(self, keys: list[str]) -> dict[str, int]:
        self.reads.append(keys)
        while self.hanging & set(keys):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                if not self.ignores_cancels:
                    raise
        return {key: self.values[key] for key in keys if key in self.values}


Body = Callable[[SharedPurgatory, HangingStore, Hub], Coroutine[Any, Any, None]]


def run(body: Body, resync: float = 5.0, **options: Any) -> None:
    async def main() -> None:
        hub, store = Hub(Random(0)), HangingStore()
        relay = MisbehavingRelay(hub, "relay")
        async with SharedPurgatory("Fetch", relay, store.read, resync, **options) as purgatory:
            await body(purgatory, store, hub)
            store.hanging.clear()
            await asyncio.sleep(1)
            purgatory._check()
        assert not purgatory._late
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with World(0) as world:
        world.run(main())


@pytest.mark.parametrize("ignores_cancels", [False, True])
def test_other_keys_are_read_though_one_read_hangs(ignores_cancels: bool, logs: list[Any]) -> None:
    async def body(purgatory: SharedPurgatory, store: HangingStore, hub: Hub) -> None:
        store.values, store.hanging = {"a": 1, "b": 1}, {"a"}
        store.ignores_cancels = ignores_cancels
        waits = [asyncio.create_task(purgatory.wait_for_threshold("a", 1))]
        await asyncio.sleep(1)
        waits.append(asyncio.create_task(purgatory.wait_for_threshold("b", 1)))
        await asyncio.sleep(5)
        assert [wait.done() for wait in waits] == [False, True]
        (failed,) = [entry for entry in logs if entry["event"] == "read_failed"]
        assert "read did not return within 5.0 s" in str(failed["exc_info"])
        await asyncio.sleep(20)
        store.hanging.clear()
        await asyncio.sleep(7)
        assert waits[0].result() == 1

    run(body, batch=1)


def test_reads_that_never_end_are_bounded() -> None:
    async def body(purgatory: SharedPurgatory, store: HangingStore, hub: Hub) -> None:
        store.hanging, store.ignores_cancels = {"a"}, True
        wait = asyncio.create_task(purgatory.wait_for_threshold("a", 1))
        await asyncio.sleep(1_000)
        assert len(store.reads) == 8
        store.values = {"a": 1}
        store.hanging.clear()
        await asyncio.sleep(6)
        assert wait.result() == 1

    run(body, resync=1.0, read_timeout=1.0)


def test_relay_hears_again_though_reads_hang_at_first() -> None:
    async def body(purgatory: SharedPurgatory, store: HangingStore, hub: Hub) -> None:
        relay = purgatory.relay
        wait = asyncio.create_task(purgatory.wait_for_threshold("a", 2))
        await asyncio.sleep(1)
        store.hanging = {"a"}
        hub.cut_all()
        await asyncio.sleep(20)
        assert relay.state.name == "deaf"
        assert relay.counts.deaf_s == pytest.approx(20, abs=0.5)
        store.hanging.clear()
        store.values = {"a": 2}
        await asyncio.sleep(12)
        assert (relay.state.name, wait.done()) == ("live", True)

    run(body, resync=HOUR_S)


def test_failing_read_keeps_no_other_purgatory_from_reading() -> None:
    async def body(purgatory: SharedPurgatory, store: HangingStore, hub: Hub) -> None:
        other_store = HangingStore()
        async with SharedPurgatory("Jobs", purgatory.relay, other_store.read, HOUR_S) as other:
            first = asyncio.create_task(purgatory.wait_for_threshold("a", 2))
            wait = asyncio.create_task(other.wait_for_threshold("a", 2))
            await asyncio.sleep(1)
            store.hanging = {"a"}
            hub.cut_all()
            other_store.values = {"a": 2}
            await asyncio.sleep(1)
            assert wait.result() == 2
            assert purgatory.relay.state.name == "deaf"
            first.cancel()

    run(body, resync=HOUR_S)


def test_read_that_is_cancelled_has_failed(logs: list[Any]) -> None:
    async def body(purgatory: SharedPurgatory, store: HangingStore, hub: Hub) -> None:
        async def cancelled(keys: list[str]) -> dict[str, int]:
            raise asyncio.CancelledError

        wait = asyncio.create_task(purgatory.wait_for_threshold("a", 1))
        await asyncio.sleep(1)
        works, purgatory._read_values = purgatory._read_values, cancelled
        hub.cut_all()
        await asyncio.sleep(10)
        assert purgatory.relay.state.name == "deaf"
        purgatory._read_values = works
        store.values["a"] = 1
        await asyncio.sleep(6)
        assert (purgatory.relay.state.name, wait.result()) == ("live", 1)

    run(body, resync=HOUR_S)


@pytest.mark.parametrize("is_condition", [False, True])
def test_wait_without_time_reads_though_another_waits(is_condition: bool) -> None:
    async def body(purgatory: SharedPurgatory, store: HangingStore, hub: Hub) -> None:
        store.values["a"] = 1
        other = asyncio.create_task(
            purgatory.wait(["a"], lambda: 0)
            if is_condition
            else purgatory.wait_for_threshold("a", 9)
        )
        await asyncio.sleep(1)
        for value in range(2, 5):
            store.values["a"] = value  # and nobody tells
            assert await purgatory.wait_for_threshold("a", value, 0) == value
            with pytest.raises(TimeoutError):
                await purgatory.wait_for_threshold("a", value + 1, 0)
        store.hanging = {"a"}
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await purgatory.wait_for_threshold("a", 8, 0)
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(1)
        other.cancel()

    run(body, resync=HOUR_S)


def test_read_of_before_a_wait_without_time_does_not_count() -> None:
    async def body(purgatory: SharedPurgatory, store: HangingStore, hub: Hub) -> None:
        async def slow(keys: list[str]) -> dict[str, int]:
            found = dict(store.values)
            await asyncio.sleep(0.5)
            return found

        purgatory._read_values = slow
        store.values["a"] = 1
        other = asyncio.create_task(purgatory.wait_for_threshold("a", 9))
        await asyncio.sleep(0.2)
        store.values["a"] = 2
        assert await purgatory.wait_for_threshold("a", 2, 0) == 2
        other.cancel()

    run(body, resync=HOUR_S)
