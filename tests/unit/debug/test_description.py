"""A description of a purgatory is exact, and its cost does not grow with pending operations."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from purgatory import AsyncPurgatory, DelayedOperationPurgatory, describe
from purgatory.debug.description import MAX_COUNTED_KEYS, MAX_SAMPLED
from purgatory.shared import SharedPurgatory, UnixRelay
from tests.unit.core.probe import LONG_MS, Probe
from tests.unit.debug.conftest import Looked


def told(looked: Looked, most: int = 10) -> dict[str, Any]:
    [one] = describe([looked.purgatory], limit=most)["purgatories"]
    json.dumps(one, allow_nan=False)
    found: dict[str, Any] = one
    return found


def fail(error: Exception) -> object:
    raise error


def test_an_empty_purgatory_is_described(looked: Looked) -> None:
    one = told(looked)
    assert (one["name"], one["pending"], one["oldest"], one["hottest_keys"]) == ("Fetch", 0, [], [])
    assert one["reaper"] is None
    assert set(one["outcomes"].values()) == {0}


def test_oldest_operations_come_first_with_age_and_time_left(looked: Looked) -> None:
    for number in range(12):
        looked.purgatory.try_complete_else_watch(Probe(1_000 + number), [number, "all"])
        looked.pass_time(10)
    one = told(looked, most=2)
    assert one["pending"] == 12
    assert [wait["age_ms"] for wait in one["oldest"]] == [120, 110]
    assert [wait["expires_in_ms"] for wait in one["oldest"]] == [880, 891]
    assert one["oldest"][0]["keys"] == ["0", "'all'"]
    assert one["oldest_ms"] == 120
    assert one["hottest_keys"][0] == {"key": "'all'", "waiting": 12, "or_more": False}


def test_an_operation_without_a_timeout_has_no_deadline(looked: Looked) -> None:
    looked.purgatory.try_complete_else_watch(Probe(2**70), ["a"])
    assert told(looked)["oldest"][0]["expires_in_ms"] is None


def test_a_delay_that_was_changed_to_nonsense_hides_nothing(looked: Looked) -> None:
    operation = Probe()
    looked.purgatory.try_complete_else_watch(operation, ["a"])
    operation.delay_ms = "soon"  # type: ignore[assignment]
    assert told(looked)["oldest"][0]["expires_in_ms"] is None
    operation.delay_ms = LONG_MS


def test_keys_beyond_the_twentieth_are_counted_only(looked: Looked) -> None:
    looked.purgatory.try_complete_else_watch(Probe(), list(range(50)))
    [wait] = told(looked)["oldest"]
    assert (len(wait["keys"]), wait["more_keys"]) == (20, 30)


def test_the_first_and_the_last_of_many_are_described(looked: Looked) -> None:
    late_key = "came late"
    for number in range(MAX_COUNTED_KEYS + 50):
        key = late_key if number >= MAX_COUNTED_KEYS - 100 else number
        looked.purgatory.try_complete_else_watch(Probe(), [key, "all"])
    one = told(looked)
    assert one["looked_at"] == 2 * MAX_SAMPLED
    assert one["hottest_keys"][:2] == [
        {"key": "'all'", "waiting": MAX_COUNTED_KEYS, "or_more": True},
        {"key": repr(late_key), "waiting": 150, "or_more": False},
    ]


def test_errors_of_callbacks_are_described_the_last_one_first(looked: Looked) -> None:
    class Unprintable(Exception):
        def __repr__(self) -> str:
            raise RuntimeError

    for error in (ValueError("x" * 5_000), Unprintable()):
        hooks: dict[str, Callable[[], object]] = {"try_complete": partial(fail, error)}
        looked.purgatory.try_complete_else_watch(Probe(hooks=hooks), ["a"])
    one = told(looked)
    last, first = one["recent_errors"]
    assert (last["stage"], last["event"]) == ("try_complete", "callback_failed")
    assert last["error"] == "<Unprintable whose repr raised RuntimeError>"
    assert first["error"].startswith("ValueError('xxx") and len(first["error"]) == 500
    assert one["callback_errors"]["try_complete"] == 2


def test_only_the_last_errors_are_kept(looked: Looked) -> None:
    for number in range(30):
        hooks: dict[str, Callable[[], object]] = {"on_complete": partial(fail, ValueError(number))}
        looked.purgatory.try_complete_else_watch(Probe(ready=True, hooks=hooks), ["a"])
    errors = [fault["error"] for fault in told(looked, most=50)["recent_errors"]]
    assert errors == [f"ValueError({number})" for number in range(29, 9, -1)]


class Raising:
    """A key that can't be told or compared any more."""

    broken = False

    def __hash__(self) -> int:
        if self.broken:
            raise RuntimeError
        return 1

    def __repr__(self) -> str:
        raise RuntimeError


def test_a_key_that_raises_is_passed_over(looked: Looked) -> None:
    key = Raising()
    looked.purgatory.try_complete_else_watch(Probe(), [key])
    looked.purgatory.try_complete_else_watch(Probe(), ["good"])
    key.broken = True
    one = told(looked)
    assert [hot["key"] for hot in one["hottest_keys"]] == ["'good'"]
    assert one["oldest"][0]["keys"] == ["<Raising whose repr raised RuntimeError>"]
    key.broken = False


def test_all_open_purgatories_of_the_process_are_described(looked: Looked) -> None:
    with DelayedOperationPurgatory("also here", reaper_enabled=False) as other:
        names = [one["name"] for one in describe()["purgatories"]]
        assert {"also here", "Fetch"} <= set(names)
        assert names == sorted(names)
    assert "also here" not in [one["name"] for one in describe()["purgatories"]]
    assert other.is_closed


def test_the_purgatory_of_an_event_loop_is_described() -> None:
    async def look() -> dict[str, Any]:
        async with AsyncPurgatory("loop") as purgatory:
            waiting = asyncio.create_task(purgatory.wait(["a"], lambda: False, timeout=60))
            await asyncio.sleep(0)
            [one] = describe([purgatory])["purgatories"]
            waiting.cancel()
        found: dict[str, Any] = one
        return found

    one = asyncio.run(look())
    assert (one["name"], one["pending"]) == ("loop", 1)
    assert one["reaper"]["alive"]


def test_a_negative_number_is_refused(looked: Looked) -> None:
    with pytest.raises(ValueError, match="limit must be 0 or more, not -1"):
        describe([looked.purgatory], limit=-1)


def test_a_purgatory_may_be_described_while_threads_use_it() -> None:
    """Nothing raises, and nothing is lost."""
    over = threading.Event()
    seen = []

    def look() -> None:
        while not over.is_set():
            seen.append(describe([purgatory])["purgatories"][0]["pending"])

    def use(name: str) -> None:
        for number in range(2_000):
            operation = Probe(LONG_MS)
            purgatory.try_complete_else_watch(operation, [name, number % 7])
            operation.ready = True
            purgatory.check_and_complete(name)

    with DelayedOperationPurgatory("busy") as purgatory:
        looking = threading.Thread(target=look)
        looking.start()
        using = [threading.Thread(target=use, args=(f"key {index}",)) for index in range(3)]
        for thread in using:
            thread.start()
        for thread in using:
            thread.join()
        over.set()
        looking.join()
        assert seen
        assert purgatory.counters.outcomes["completed"] == 6_000
        assert purgatory.num_delayed == 0
        purgatory._check()


def test_relays_are_described_while_purgatories_use_them(tmp_path: Path) -> None:
    async def main() -> None:
        relay = UnixRelay("relay")
        assert describe()["relays"] == []
        async with SharedPurgatory("Fetch", relay, lambda _: {}, 60) as shared:
            while relay.state.name != "live":
                await asyncio.sleep(0.01)
            waiting = asyncio.create_task(shared.wait_for_threshold("k", 1, 30))
            await asyncio.sleep(0)
            [described] = (await asyncio.to_thread(describe))["relays"]
            assert described["relay"] == "UnixRelay('relay')"
            assert (described["state"], described["error"], described["watched_keys"]) == (
                *("live", None),
                1,
            )
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", described["since"])
            assert (described["sent"], described["received"], described["lost"]) == (0, 0, 0)
            await shared.advance("k", 1)
            await waiting
        assert describe()["relays"] == []

    with contextlib.chdir(tmp_path):  # for a short path
        asyncio.run(main())
