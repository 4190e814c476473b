"""`SharedPurgatory` and its relay on an event loop in virtual time."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from purgatory.core.errors import PurgatoryClosedError, PurgatoryFullError, WaitCancelledError
from purgatory.shared import relay as relay_module
from purgatory.shared import unix_relay
from purgatory.shared.relay import Relay, RelayError
from purgatory.shared.shared_purgatory import SharedPurgatory
from purgatory.shared.unix_relay import UnixRelay
from purgatory.virtual import World
from tests.unit.core.probe import core_logs

HOUR_S = 3600.0


class FakeRelay(Relay):
    """Records what it is to do, in order; a test decides what comes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []
        self.refusal: BaseException | None = None
        self.is_up = asyncio.Event()
        self.is_up.set()
        self.may_subscribe = asyncio.Event()
        self.may_subscribe.set()
        self.may_publish = asyncio.Event()
        self.may_publish.set()
        self.cut: asyncio.Future[None] | None = None

    async def listen(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        await self.is_up.wait()
        self.calls.append(("listen", sorted(self.keys())))
        self.cut = asyncio.get_running_loop().create_future()
        self.connected()
        await self.cut

    async def subscribe(self, added: Collection[str], removed: Collection[str]) -> None:
        self.calls.append(("subscribe", sorted(added), sorted(removed)))
        await self.may_subscribe.wait()
        self.calls.append(("subscribed",))

    async def publish(self, numbers: Mapping[str, int | None]) -> None:
        self.calls.append(("publish", dict(numbers)))
        await self.may_publish.wait()

    async def close(self) -> None:
        self.calls.append(("close",))

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] == name]

    def end_connection(self) -> None:
        assert self.cut is not None
        self.cut.set_exception(ConnectionError("cut"))


class Store:
    """The truth, whose reads stand in the relay's calls, too."""

    def __init__(self, relay: FakeRelay) -> None:
        self.relay = relay
        self.values: dict[str, Any] = {}
        self.found: Callable[[list[str]], Any] = lambda keys: {
            key: self.values[key] for key in keys if key in self.values
        }
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def read(self, keys: list[str]) -> Any:
        self.relay.calls.append(("read", list(keys)))
        await self.may_read.wait()
        return self.found(keys)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    """Collect what is logged."""
    with core_logs() as entries:
        yield entries


Body = Callable[[SharedPurgatory, FakeRelay, Store], Coroutine[Any, Any, None]]


def run(body: Body, resync: float = 5.0, **options: Any) -> None:
    """Run a test with a purgatory, of which nothing is left afterwards."""

    async def main() -> None:
        relay = FakeRelay()
        store = Store(relay)
        purgatory = SharedPurgatory("Fetch", relay, store.read, resync, **options)
        async with purgatory:
            await body(purgatory, relay, store)
            purgatory._check()
        await asyncio.sleep(0.01)
        assert not (purgatory._waits or purgatory._conditions or purgatory._unread)
        assert not (relay._watched or relay._keys or relay._unsent or relay._tasks)
        assert not purgatory.local.core._state.values
        assert state_of(relay) == "closed"
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with World(0) as world:
        world.run(main())


def state_of(relay: Relay) -> str:
    return relay.state.name


def elapsed_s() -> float:
    return asyncio.get_running_loop().time()


# Arguments.


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"resync": 0}, "resync must be more than 0 seconds, not 0"),
        (
            {"resync": float("nan")},
            "resync must be a number of seconds or a timedelta, not nan",
        ),
        ({"batch": 0}, "batch must be 1 or more keys, not 0"),
        ({"max_pending": 0}, "max_pending must be at least 1, or None for no limit"),
    ],
)
def test_options_that_are_wrong_are_refused(options: dict[str, Any], text: str) -> None:
    async def main() -> None:
        relay = FakeRelay()
        with pytest.raises(ValueError, match=text):
            SharedPurgatory("Fetch", relay, Store(relay).read, **options)

    asyncio.run(main())


def test_a_shared_purgatory_is_made_on_a_loop_and_entered() -> None:
    relay = FakeRelay()
    with pytest.raises(RuntimeError, match="needs a running event loop of asyncio"):
        SharedPurgatory("Fetch", relay, Store(relay).read)

    async def main() -> None:
        purgatory = SharedPurgatory("Fetch", relay, Store(relay).read)
        assert purgatory.name == "Fetch"
        calls = [
            purgatory.wait_for_threshold("k", 1),
            purgatory.wait(["k"], lambda: True),
            purgatory.advance("k", 1),
            purgatory.notify("k"),
        ]
        for call in calls:
            with pytest.raises(RuntimeError, match="'Fetch' is not entered: async with Shared"):
                await call
        assert await purgatory.aclose() == 0
        assert relay.calls == []

    asyncio.run(main())


def test_keys_are_text_and_numbers_are_integers() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        wrong: Any
        for wrong in (7, b"k", ("k", 1), None):
            for call in (
                purgatory.wait_for_threshold(wrong, 1),
                purgatory.wait(["k", wrong], lambda: True),
                purgatory.advance(wrong, 1),
                purgatory.notify(wrong),
            ):
                with pytest.raises(TypeError, match="a key that processes share is a str, not"):
                    await call
        for wrong in (True, 1.0, "1", None):
            with pytest.raises(TypeError, match="the threshold of 'k' must be an int, not"):
                await purgatory.wait_for_threshold("k", wrong)
            with pytest.raises(TypeError, match="the value of 'k' must be an int, not"):
                await purgatory.advance("k", wrong)
        for wrong in ("key", b"key"):
            with pytest.raises(TypeError, match=r"keys must be a list of keys, not the single"):
                await purgatory.wait(wrong, lambda: True)
        with pytest.raises(ValueError, match="keys is empty"):
            await purgatory.wait([], lambda: True)
        with pytest.raises(ValueError, match="nan"):
            await purgatory.wait_for_threshold("k", 1, float("nan"))
        await asyncio.sleep(0.1)
        assert not relay.named("read")
        assert not relay.named("publish")

    run(body)


def test_keys_of_any_text_and_numbers_of_64_bits_pass() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        for number, key in enumerate(["", " ", "ü" * 300, "\ud800", "\ud800" * 300, "\0"]):
            value = (-1) ** number << 62 - number
            store.values[key] = value
            assert await purgatory.wait_for_threshold(key, value, 1) == value
            waiting = asyncio.create_task(purgatory.wait_for_threshold(key, value + 1))
            await asyncio.sleep(0.1)
            (sent,) = relay._watched
            assert len(sent.encode()) <= relay_module.LONGEST_KEY
            relay.receive(sent, value + 1)
            assert await waiting == value + 1

    run(body)


# Waiting.


@pytest.mark.parametrize(
    "number", [1 << 63, -(1 << 63) - 1, 10**5_000], ids=["high", "low", "longer than text may be"]
)
def test_numbers_that_no_store_holds_are_refused_and_ignored(number: int, logs: list[Any]) -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        for call in (purgatory.wait_for_threshold, purgatory.advance):
            with pytest.raises(ValueError, match=r"of 'k' must fit 64 bits"):
                await call("k", number)
        store.values |= {"k": number, "l": 3}
        waiting = asyncio.create_task(purgatory.wait_for_threshold("k", 1, 5))
        assert await purgatory.wait_for_threshold("l", 3, 5) == 3
        relay.receive("Fetch:k", number)
        with pytest.raises(TimeoutError):
            await waiting

    run(body)
    assert [entry["event"] for entry in logs].count("read_failed") == 1


def test_a_key_is_subscribed_before_it_is_read() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        store.values["k"] = 5
        relay.may_subscribe.clear()
        waiting = asyncio.create_task(purgatory.wait_for_threshold("k", 5))
        await asyncio.sleep(0.1)
        assert relay.calls == [("listen", []), ("subscribe", ["Fetch:k"], [])]
        relay.may_subscribe.set()
        assert await waiting == 5
        assert relay.calls[2:] == [("subscribed",), ("read", ["k"])]
        await asyncio.sleep(0.1)
        assert relay.calls[4:] == [("subscribe", [], ["Fetch:k"]), ("subscribed",)]

    run(body)


def test_a_message_ends_a_wait_while_its_key_is_read() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        store.may_read.clear()
        waiting = asyncio.create_task(purgatory.wait_for_threshold("k", 5))
        await asyncio.sleep(0.1)
        relay.receive("Fetch:k", 4)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        relay.receive("Fetch:k", 6)
        assert await waiting == 6
        store.may_read.set()

    run(body)


def test_a_key_is_read_once_for_all_its_waits() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        store.values["k"] = 3
        waits = [purgatory.wait_for_threshold("k", number % 4) for number in range(100)]
        assert await asyncio.gather(*waits) == [3] * 100
        assert relay.named("read") == [("read", ["k"])]
        assert purgatory.reads == 1

    run(body)


def test_a_number_is_read_though_a_condition_waits_on_its_key() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        condition = asyncio.create_task(purgatory.wait(["k"], lambda: store.values.get("done")))
        await asyncio.sleep(0.1)
        assert not relay.named("read")  # it has no number to read
        store.values["k"] = 3
        began_s = elapsed_s()
        assert await purgatory.wait_for_threshold("k", 3) == 3
        assert elapsed_s() < began_s + 0.1
        store.values["done"] = True
        assert await purgatory.notify("k") == 1
        assert await condition is True

    run(body, resync=HOUR_S)


def test_keys_are_read_in_batches() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        store.values = {f"k{number}": number for number in range(35)}
        waits = [purgatory.wait_for_threshold(key, value) for key, value in store.values.items()]
        assert await asyncio.gather(*waits) == list(range(35))
        assert [len(keys) for _, keys in relay.named("read")] == [10, 10, 10, 5]

    run(body, batch=10)


def test_read_may_be_a_plain_function() -> None:
    async def main() -> None:
        async with SharedPurgatory("Fetch", FakeRelay(), lambda keys: {"k": 2}) as purgatory:
            assert await purgatory.wait_for_threshold("k", 1, 1) == 2

    with World(0) as world:
        world.run(main())


def test_waits_time_out_are_cancelled_and_are_refused() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        store.values["k"] = 3
        with pytest.raises(TimeoutError, match=r"within 1\.5 s: 'k' to reach 4 \(it is 3\)"):
            await purgatory.wait_for_threshold("k", 4, 1.5)
        with pytest.raises(TimeoutError, match=r"within 0\.0 s"):
            await purgatory.wait_for_threshold("k", 4, 0)
        waits = [
            asyncio.create_task(purgatory.wait_for_threshold("k", 9)),
            asyncio.create_task(purgatory.wait(["k", "l", "k"], lambda: False)),
        ]
        await asyncio.sleep(0.1)
        with pytest.raises(PurgatoryFullError):
            await purgatory.wait_for_threshold("m", 1)
        assert set(relay._watched) == {"Fetch:k", "Fetch:l"}
        assert len(purgatory.local.cancel_for_key("k")) == 2
        for wait in waits:
            with pytest.raises(WaitCancelledError):
                await wait

    run(body, max_pending=2)


def test_the_error_of_until_is_raised_in_the_wait() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        waiting = asyncio.create_task(purgatory.wait(["k"], lambda: store.values["k"]))
        with pytest.raises(KeyError):
            await waiting
        store.values["k"] = 0
        waiting = asyncio.create_task(purgatory.wait(["k"], lambda: 1 // store.values["k"]))
        with pytest.raises(ZeroDivisionError):
            await waiting
        store.values["k"] = ""
        waiting = asyncio.create_task(purgatory.wait(["k"], lambda: store.values["k"]))
        await asyncio.sleep(0.1)
        del store.values["k"]
        await asyncio.sleep(6)  # at the resync
        with pytest.raises(KeyError):
            await waiting

    run(body)


def test_closing_ends_waits_with_an_error_that_names_it() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        wait = asyncio.create_task(purgatory.wait_for_threshold("k", 1))
        await asyncio.sleep(0.1)
        for wrong in ({"policy": "drop"}, {"timeout": float("nan")}):
            with pytest.raises(ValueError, match=r"policy|timeout"):
                await purgatory.aclose(**wrong)
        assert state_of(relay) == "live"
        assert purgatory._tasks
        assert await purgatory.aclose() == 1
        with pytest.raises(PurgatoryClosedError):
            await wait
        with pytest.raises(PurgatoryClosedError):
            await purgatory.wait_for_threshold("k", 1)
        assert await purgatory.advance("k", 1) == 0
        assert relay.counts.lost == 1
        assert await purgatory.aclose() == 0

    run(body)


def test_closing_that_is_cancelled_leaves_no_task() -> None:
    async def main() -> None:
        relay = FakeRelay()
        purgatory = await SharedPurgatory("Fetch", relay, Store(relay).read).__aenter__()
        relay.may_publish.clear()
        await purgatory.advance("k", 1)
        closing = asyncio.create_task(purgatory.aclose())
        await asyncio.sleep(0.1)
        assert relay.named("publish")
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert state_of(relay) == "closed"
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with World(0) as world:
        world.run(main())


# Reading.


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "read must return a mapping, as {key: 42}, not None"),
        ([("k", 1)], "read must return a mapping"),
        ({"k": "7"}, "the value of 'k' must be an int, not '7'"),
        ({"k": True}, "the value of 'k' must be an int, not True"),
        (ConnectionError("down"), "down"),
    ],
)
def test_a_read_that_fails_is_logged_once_until_it_works(
    found: Any, text: str, logs: list[Any]
) -> None:
    def fail(keys: list[str]) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        def errors() -> list[Any]:
            return [entry for entry in logs if entry["event"] == "read_failed"]

        works, store.found = store.found, fail
        wait = asyncio.create_task(purgatory.wait_for_threshold("k", 1))
        await asyncio.sleep(20)
        assert purgatory.read_failures == purgatory.reads >= 4
        (error,) = errors()
        assert (error["log_level"], error["purgatory"]) == ("error", "Fetch")
        assert text in str(error["exc_info"])
        store.found = works
        await asyncio.sleep(6)
        assert not wait.done()
        store.found = fail
        await asyncio.sleep(6)
        assert len(errors()) == 2
        store.found = works
        store.values["k"] = 1
        assert await wait == 1

    run(body)


def test_a_wrong_value_keeps_no_other_key_from_being_read(logs: list[Any]) -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        store.values = {"a": "1", "b": 1, "c": "1", "d": 1}
        waits = {key: asyncio.create_task(purgatory.wait_for_threshold(key, 1)) for key in "abcd"}
        await asyncio.sleep(0.1)
        assert [waits[key].done() for key in "abcd"] == [False, True, False, True]
        store.values = dict.fromkeys("abcd", 1)
        await asyncio.gather(*waits.values())

    run(body, batch=2)


def test_conditions_are_checked_though_reads_fail() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        number = asyncio.create_task(purgatory.wait_for_threshold("k", 1))
        condition = asyncio.create_task(purgatory.wait(["k", "l"], lambda: "k" in store.values))
        store.found = lambda keys: 1 // 0
        await asyncio.sleep(0.1)
        store.values["k"] = 1  # nobody notifies
        await asyncio.sleep(6)
        assert await condition is True
        number.cancel()

    run(body)


def test_unknown_keys_and_none_are_ignored(logs: list[Any]) -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        wait = asyncio.create_task(purgatory.wait_for_threshold("k", 1))
        store.found = lambda keys: {"k": None, "unknown": 5, 7: 8}
        await asyncio.sleep(6)
        assert purgatory.reads >= 2
        assert purgatory.local.value("unknown") is None
        store.found = lambda keys: {}
        await asyncio.sleep(6)
        assert not wait.done()
        assert purgatory.read_failures == 0
        store.found = lambda keys: {"k": 1}
        assert await wait == 1

    run(body)


def test_the_resync_finds_values_without_a_message() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        wait = asyncio.create_task(purgatory.wait_for_threshold("k", 1))
        await asyncio.sleep(0.1)
        store.values["k"] = 1
        began_s = elapsed_s()
        assert await wait == 1
        assert 4 - 0.2 < elapsed_s() - began_s <= 5

    run(body)


def test_a_lower_value_takes_nothing_back() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        store.values["k"] = 5
        high = asyncio.create_task(purgatory.wait_for_threshold("k", 9))
        await asyncio.sleep(0.1)
        store.values["k"] = 2  # of a replica that lags
        relay.receive("Fetch:k", 1)
        await asyncio.sleep(6)
        assert await purgatory.wait_for_threshold("k", 5, 0) == 5
        assert await purgatory.advance("k", 9) == 1
        assert await high == 9

    run(body)


# Relays.


def test_a_relay_is_live_once_all_keys_were_read_again(logs: list[Any]) -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        loop = asyncio.get_running_loop()
        assert state_of(relay) == "live"
        wait = asyncio.create_task(purgatory.wait_for_threshold("k", 1))
        await asyncio.sleep(1)
        relay.is_up.clear()
        relay.end_connection()
        down_s = loop.time()
        await asyncio.sleep(1)
        state = relay.state
        assert (state.name, repr(state.error)) == ("deaf", "ConnectionError('cut')")
        store.values["k"] = 1  # whose message is lost
        store.may_read.clear()
        relay.is_up.set()
        await asyncio.sleep(1)
        assert relay.calls[-2:] == [("listen", ["Fetch:k"]), ("read", ["k"])]
        assert relay.state == state, "deaf until all is read"
        assert relay.counts.deaf_s == pytest.approx(2)
        store.may_read.set()
        assert await wait == 1
        await asyncio.sleep(0.1)
        assert state_of(relay) == "live"
        assert relay.state.error is None
        assert relay.state.since - state.since == pytest.approx(loop.time() - down_s - 0.1)
        assert relay.counts.reconnects == 1
        assert [entry["event"] for entry in logs] == ["relay_live", "relay_deaf", "relay_live"]

    run(body, resync=HOUR_S)


def test_a_relay_stays_deaf_while_keys_can_not_be_read() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        wait = asyncio.create_task(purgatory.wait_for_threshold("k", 1))
        await asyncio.sleep(1)
        works, store.found = store.found, lambda keys: 1 // 0
        relay.end_connection()
        await asyncio.sleep(30)
        assert state_of(relay) == "deaf"
        store.found = works
        await asyncio.sleep(10)
        assert state_of(relay) == "live"
        wait.cancel()

    run(body, resync=HOUR_S)


def test_relay_begins_deaf_without_a_server(logs: list[Any]) -> None:
    async def main() -> None:
        relay = FakeRelay()
        assert state_of(relay) == "closed"
        relay.refusal = OSError("nobody is there")
        async with SharedPurgatory("Fetch", relay, lambda keys: {"k": 1}) as purgatory:
            assert state_of(relay) == "deaf"
            assert relay.state.error is relay.refusal
            assert await purgatory.wait_for_threshold("k", 1, 1) == 1
            await purgatory.advance("k", 2)
            await asyncio.sleep(60)
            assert relay.counts.lost == 1
            relay.refusal = None
            await asyncio.sleep(5.1)  # the longest delay
            assert state_of(relay) == "live"
        assert state_of(relay) == "closed"

    with World(0) as world:
        world.run(main())
    assert [entry["event"] for entry in logs].count("relay_deaf") == 1


def test_a_relay_that_is_refused_raises_where_it_is_entered(logs: list[Any]) -> None:
    async def main() -> None:
        relay = FakeRelay()
        relay.refusal = RelayError("the password is wrong")
        purgatory = SharedPurgatory("Fetch", relay, lambda keys: {})
        for _ in range(2):
            with pytest.raises(RelayError, match="the password is wrong"):
                await purgatory.__aenter__()
            assert state_of(relay) == "closed"
            assert asyncio.all_tasks() == {asyncio.current_task()}
        assert purgatory.local.core.is_closed

    with World(0) as world:
        world.run(main())
    assert [entry["event"] for entry in logs].count("relay_refused") == 2


def test_relay_that_worked_before_is_retried_after_any_error() -> None:
    async def main() -> None:
        relay = FakeRelay()
        async with SharedPurgatory("Fetch", relay, lambda keys: {"k": 1}) as purgatory:
            relay.refusal = RelayError("the database does not exist")
            relay.end_connection()
            await asyncio.sleep(20)
            assert state_of(relay) == "deaf"
            assert await purgatory.wait_for_threshold("k", 1, 1) == 1
            await purgatory.advance("k", 2)
            async with SharedPurgatory("Join", relay, lambda keys: {}):
                relay.refusal = None  # it was restored
                await asyncio.sleep(5.1)
                assert state_of(relay) == "live"
        assert state_of(relay) == "closed"

    with World(0) as world:
        world.run(main())


def test_a_subscription_that_fails_begins_another_connection(logs: list[Any]) -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        relay.may_subscribe.clear()  # for longer than it may take
        wait = asyncio.create_task(purgatory.wait_for_threshold("k", 1))
        await asyncio.sleep(20)
        assert relay.named("listen") == [("listen", []), ("listen", ["Fetch:k"])]
        assert state_of(relay) == "live"
        assert "relay_subscribe_failed" in [entry["event"] for entry in logs]
        relay.may_subscribe.set()
        wait.cancel()

    run(body, resync=HOUR_S)


def test_pending_numbers_of_a_key_become_the_highest() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        relay.may_publish.clear()
        await purgatory.advance("first", 1)
        await asyncio.sleep(0.1)  # it is being sent
        for number in (3, 7, 5):
            await purgatory.advance("k", number)
            await purgatory.notify("k")
        for _ in range(3):
            await purgatory.notify("event")
        await purgatory.advance("negative", -2)
        relay.may_publish.set()
        await asyncio.sleep(0.1)
        assert [numbers for _, numbers in relay.named("publish")] == [
            {"Fetch:first": 1},
            {"Fetch:k": 7, "Fetch:event": None, "Fetch:negative": -2},
        ]
        assert relay.counts.sent == 4

    run(body)


def test_numbers_that_are_being_sent_are_sent_before_the_relay_ends() -> None:
    async def main() -> None:
        relay = FakeRelay()
        relay.may_publish.clear()
        async with SharedPurgatory("Fetch", relay, lambda keys: {}) as purgatory:
            await purgatory.advance("k", 1)
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(1, relay.may_publish.set)
        assert relay.counts.sent == 1
        assert relay.counts.lost == 0

    with World(0) as world:
        world.run(main())


def test_senders_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "MOST_UNSENT", 10)

    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        relay.may_publish.clear()
        await purgatory.advance("first", 1)
        await asyncio.sleep(0.1)
        senders = [asyncio.create_task(purgatory.advance(f"k{number}", 1)) for number in range(12)]
        await asyncio.sleep(0.1)
        assert [sender.done() for sender in senders] == [True] * 9 + [False] * 3
        relay.may_publish.set()
        assert await asyncio.gather(*senders) == [0] * 12
        await asyncio.sleep(0.1)
        assert relay.counts.sent == 13

    run(body)


@pytest.mark.parametrize("is_deaf", [False, True])
def test_closing_frees_senders_that_wait_for_room(
    is_deaf: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "MOST_UNSENT", 1)

    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        relay.may_publish.clear()
        if is_deaf:
            wait = asyncio.create_task(purgatory.wait_for_threshold("k", 1))
            await asyncio.sleep(0.1)
            store.may_read.clear()
            relay.end_connection()
            await asyncio.sleep(0.1)
            assert (relay.calls[-1][0], state_of(relay)) == ("read", "deaf")
            wait.cancel()
        senders = [asyncio.create_task(purgatory.advance(key, 1)) for key in "abcdef"]
        await asyncio.sleep(0.1)
        senders += [asyncio.create_task(purgatory.advance(key, 1)) for key in "abcdef"]
        await asyncio.sleep(0.1)
        assert not senders[-1].done()
        await purgatory.aclose()
        assert await asyncio.wait_for(asyncio.gather(*senders), 1) == [0] * 12

    run(body)


def test_purgatories_share_a_relay_until_the_last_one_is_closed() -> None:
    async def main() -> None:
        relay = FakeRelay()
        fetch = await SharedPurgatory("Fetch", relay, lambda keys: {}).__aenter__()
        join = await SharedPurgatory("Join", relay, lambda keys: {}).__aenter__()
        assert len(relay.named("listen")) == 1
        waits = [asyncio.create_task(one.wait_for_threshold("k", 1)) for one in (fetch, join)]
        await asyncio.sleep(0.1)
        relay.receive("Fetch:k", 1)
        relay.receive("Join:k", 2)
        assert await asyncio.gather(*waits) == [1, 2]
        await fetch.aclose()
        assert state_of(relay) == "live"
        await join.aclose()
        assert state_of(relay) == "closed"
        assert relay.named("close") == [("close",)]

    with World(0) as world:
        world.run(main())


def test_close_during_a_subscription_keeps_the_keys_of_others() -> None:
    async def main() -> None:
        relay = FakeRelay()
        fetch = await SharedPurgatory("Fetch", relay, lambda keys: {}).__aenter__()
        join = await SharedPurgatory("Join", relay, lambda keys: {}).__aenter__()
        relay.may_subscribe.clear()
        waits = [
            asyncio.create_task(purgatory.wait_for_threshold(key, 1))
            for purgatory, key in ((fetch, "a"), (join, "b"))
        ]
        await asyncio.sleep(0.1)
        assert relay.named("subscribe") == [("subscribe", ["Fetch:a", "Join:b"], [])]
        await fetch.aclose()  # whose task that is
        assert relay.named("subscribe")[-1] == ("subscribe", ["Join:b"], ["Fetch:a"])
        relay.may_subscribe.set()
        await asyncio.sleep(0.1)
        assert relay.named("subscribed") == [("subscribed",)]
        relay.receive("Join:b", 1)
        assert await waits[1] == 1
        await join.aclose()
        with pytest.raises(PurgatoryClosedError):
            await waits[0]

    with World(0) as world:
        world.run(main())


def test_a_relay_that_is_ending_is_begun_again() -> None:
    async def main() -> None:
        relay = FakeRelay()
        fetch = await SharedPurgatory("Fetch", relay, lambda keys: {}).__aenter__()
        closing = asyncio.create_task(fetch.aclose())
        for _ in range(20):
            join = SharedPurgatory("Join", relay, lambda keys: {})
            async with join:
                assert state_of(relay) == "live"
                wait = asyncio.create_task(join.wait_for_threshold("k", 1))
                await asyncio.sleep(0.01)
                relay.receive("Join:k", 1)
                assert await wait == 1
            await closing
            closing = asyncio.create_task(join.aclose())
        await closing
        assert state_of(relay) == "closed"

    with World(0) as world:
        world.run(main())


@pytest.fixture
def folder() -> Iterator[str]:
    """For sockets: with a short path, which pytest's own have not."""
    with tempfile.TemporaryDirectory(prefix="relay-") as made:
        yield made


def test_without_a_timeout_the_store_is_read_all_the_same(folder: str) -> None:
    async def main() -> None:
        async with SharedPurgatory("Fetch", UnixRelay(folder), lambda _: {"k": 3}, 60) as shared:
            assert await shared.wait_for_threshold("k", 3, timeout=0) == 3
            with pytest.raises(TimeoutError):
                await shared.wait_for_threshold("k", 4, timeout=0)
            shared._check()

    asyncio.run(main())


def test_a_store_that_does_not_respond_holds_up_no_timeout_for_long() -> None:
    async def body(purgatory: SharedPurgatory, relay: FakeRelay, store: Store) -> None:
        store.may_read.clear()
        began_s = elapsed_s()
        with pytest.raises(TimeoutError):
            await purgatory.wait_for_threshold("k", 1, timeout=0)
        assert elapsed_s() - began_s <= 1.1
        store.may_read.set()

    run(body)


def test_purgatories_of_one_process_hear_each_other_without_the_relay(folder: str) -> None:
    async def main() -> None:
        relay = UnixRelay(folder)  # which sends nothing back
        values: dict[str, int] = {}
        async with (
            SharedPurgatory("Fetch", relay, lambda _: values, 3_600) as first,
            SharedPurgatory("Fetch", relay, lambda _: values, 3_600) as second,
        ):
            poll = asyncio.create_task(first.wait_for_threshold("k", 1, timeout=30))
            while not first.reads:
                await asyncio.sleep(0)
            await second.advance("k", 1)
            assert await poll == 1

    asyncio.run(main())


def test_a_socket_that_was_removed_is_made_again(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_relay, "_LOOK_S", 0.01)

    async def main() -> None:
        values: dict[str, int] = {}
        place = f"{folder}/s"
        async with (
            SharedPurgatory("Fetch", UnixRelay(place), lambda _: values, 3_600) as first,
            SharedPurgatory("Fetch", UnixRelay(place), lambda _: values, 3_600) as second,
        ):
            poll = asyncio.create_task(first.wait_for_threshold("k", 1, timeout=60))
            shutil.rmtree(place)
            for shared in (first, second):
                while not shared.relay.counts.reconnects or shared.relay.state.name != "live":
                    await asyncio.sleep(0.01)
            await second.advance("k", 1)
            assert await poll == 1
        assert not list(Path(place).iterdir())

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_relay_by_sockets_may_be_made_before_a_fork(folder: str) -> None:
    program = f"""
import asyncio, os, sys
from purgatory.shared import SharedPurgatory, UnixRelay

relay = UnixRelay({folder!r} + "/s")
is_parent = os.fork() != 0

async def main():
    async with SharedPurgatory("Fetch", relay, lambda keys: {{}}, 3_600) as shared:
        if is_parent:
            await shared.wait_for_threshold("from the child", 1, 60)
            await shared.advance("from the parent", 1)
        else:
            waiting = asyncio.create_task(shared.wait_for_threshold("from the parent", 1, 60))
            while not waiting.done():
                await shared.advance("from the child", 1)
                await asyncio.sleep(0.02)
            await waiting

asyncio.run(main())
if is_parent:
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    print("both heard")
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.stdout == "both heard\n", ran.stderr
