"""A relay serves the purgatories of one event loop at a time, and refuses the others at once."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from purgatory.shared.shared_purgatory import SharedPurgatory, ThreadedSharedPurgatory
from tests.world.shared.misbehaving_relay import Hub, MisbehavingRelay

HOUR_S = 3_600.0


def a_relay() -> MisbehavingRelay:
    return MisbehavingRelay(Hub(Random(0)), "relay")


def test_relay_refuses_a_second_threaded_purgatory() -> None:
    relay = a_relay()
    with ThreadedSharedPurgatory("Fetch", relay, lambda keys: {}, HOUR_S) as fetches:
        for name in ("Fetch", "Jobs"):
            with pytest.raises(RuntimeError, match="purgatories of another event loop: make a"):
                ThreadedSharedPurgatory(name, relay, lambda keys: {}, HOUR_S)
        assert fetches.advance("k", 1) == 0
        assert relay.state.name == "live"
    assert relay.counts.lost == 0
    with ThreadedSharedPurgatory("Jobs", relay, lambda keys: {"k": 1}, HOUR_S) as jobs:
        assert jobs.wait_for_threshold("k", 1, 30) == 1


def test_relay_of_a_thread_refuses_this_loop() -> None:
    relay = a_relay()

    async def main() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await SharedPurgatory("Fetch", relay, lambda keys: {}).__aenter__()

    with ThreadedSharedPurgatory("Fetch", relay, lambda keys: {}, HOUR_S):
        asyncio.run(main())
        assert relay.state.name == "live"


def test_purgatory_refuses_calls_on_another_loop() -> None:
    with ThreadedSharedPurgatory("Fetch", a_relay(), lambda keys: {}, HOUR_S) as threaded:
        shared = threaded.shared
        for call in (
            shared.advance("k", 1),
            shared.notify("k"),
            shared.wait_for_threshold("k", 1, 0),
            shared.wait(["k"], lambda: True),
        ):
            with pytest.raises(RuntimeError, match=r"another event loop|asyncio"):
                asyncio.run(call)
        assert not shared.relay.watched_keys
