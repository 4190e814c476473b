"""A message reaches purgatories of its name alone, and no text of a user's is another's key."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.shared.relay import LONGEST_KEY, sent_key
from purgatory.shared.shared_purgatory import SharedPurgatory
from purgatory.virtual import World
from tests.world.shared.misbehaving_relay import Hub, MisbehavingRelay

HOUR_S = 3_600.0
_LONG = "https://example.com/" + "x" * 300


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with World(0) as world:
        world.run(body())


def purgatory(name: str, relay: MisbehavingRelay) -> SharedPurgatory:
    return SharedPurgatory(name, relay, lambda keys: {}, HOUR_S)


@pytest.mark.parametrize("shares_relay", [False, True])
def test_purgatory_hears_its_own_name_alone(shares_relay: bool) -> None:
    async def main() -> None:
        hub = Hub(Random(0))
        relays = [MisbehavingRelay(hub, str(number)) for number in range(3)]
        if shares_relay:
            relays[1] = relays[0]
        async with (
            purgatory("Fetch", relays[0]) as fetches,
            purgatory("Jobs", relays[1]) as jobs,
            purgatory("Fetch", relays[2]) as others,
        ):
            checks: list[int] = []

            def check() -> bool:
                checks.append(1)
                return False

            condition = asyncio.create_task(fetches.wait(["7"], check))
            wait = asyncio.create_task(fetches.wait_for_threshold("7", 5))
            await asyncio.sleep(1)
            before = len(checks)
            await jobs.advance("7", 9)
            await jobs.notify("7")
            await asyncio.sleep(1)
            assert not wait.done()
            assert len(checks) == before
            assert fetches.local.value("7") is None
            await others.advance("7", 5)
            assert await wait == 5
            condition.cancel()

    run(main)


@pytest.mark.parametrize("form", ["sha256:{}", "#{}", "Fetch:{}", "{}"])
def test_user_text_is_never_the_hash_of_a_long_key(form: str) -> None:
    async def main() -> None:
        hub = Hub(Random(0))
        async with (
            purgatory("Fetch", MisbehavingRelay(hub, "one")) as one,
            purgatory("Fetch", MisbehavingRelay(hub, "other")) as other,
        ):
            wait = asyncio.create_task(one.wait_for_threshold(_LONG, 5))
            await asyncio.sleep(1)
            for hashed in (_LONG, sent_key("Fetch", _LONG)):
                digest = hashlib.sha256(hashed.encode()).hexdigest()
                await other.advance(form.format(digest), 9)
            await other.advance(form.format(sent_key("Fetch", _LONG)), 9)
            await asyncio.sleep(1)
            assert not wait.done()
            await other.advance(_LONG, 5)
            assert await wait == 5

    run(main)


_TEXTS = st.one_of(
    st.text(alphabet=":%#A@3", max_size=6),
    st.sampled_from(["x" * 200, "x" * 250, "\ud800", sent_key("Fetch", _LONG)]),
)
_NAMES = st.text(alphabet=":%#A@3é", max_size=6)


@given(st.tuples(_NAMES, _TEXTS), st.tuples(_NAMES, _TEXTS))
def test_different_keys_are_sent_as_different_texts(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assert (sent_key(*one) == sent_key(*other)) == (one == other)
    assert len(sent_key(*one).encode()) <= LONGEST_KEY
