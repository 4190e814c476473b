"""All public calls of the purgatories that wait on an event loop, and what holds at the end.

``calls.py`` has those of the core beneath. Pairs of these run on one loop, the second one while the
first one waits; then everything is closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from purgatory import (
    AsyncPurgatory,
    DelayedOperation,
    PurgatoryClosedError,
    PurgatoryFullError,
    WaitCancelledError,
)
from purgatory.core.closing import ClosePolicy
from purgatory.shared.relay import Relay
from purgatory.shared.shared_purgatory import SharedPurgatory, ThreadedSharedPurgatory
from tests.unit.core.probe import Probe
from timer import ManualClock

WAIT_S = 5

ENDS = (
    TimeoutError,
    PurgatoryClosedError,
    PurgatoryFullError,
    WaitCancelledError,
    asyncio.CancelledError,
    LookupError,
)
"""The errors by which a wait may end."""


class LoopState(NamedTuple):
    """The state of a purgatory on a loop as the calls begin."""

    limit: str = "none"
    observer: str = "none"
    place: str = "waiting"
    """Of another wait on the key: it is there, or the purgatory was closed."""


STATES = [
    LoopState(),
    LoopState("full", "set"),
    LoopState("last place", "raises"),
    LoopState("none", "set", "closed"),
    LoopState("full", "raises", "closed"),
]


class SilentRelay(Relay):
    """Carries no message to anybody."""

    async def listen(self) -> None:
        self.connected()
        await asyncio.get_running_loop().create_future()

    async def subscribe(self, added: Collection[str], removed: Collection[str]) -> None:
        """Nothing is to be done."""

    async def publish(self, numbers: Mapping[str, int | None]) -> None:
        """Nothing is to be done."""

    async def close(self) -> None:
        """Nothing is to be done."""


@dataclass
class LoopScene:
    """A purgatory on a loop, an operation that waits in it, and who was told of what."""

    state: LoopState
    is_ready: bool = False
    made: list[Probe] = field(default_factory=list)
    observed: Counter[int] = field(default_factory=Counter)
    kept: list[DelayedOperation] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    on_loop: AsyncPurgatory = field(init=False)

    def _observe(self, operation: DelayedOperation, counted_as: str, wait_ns: int) -> None:
        self.observed[id(operation)] += 1
        self.kept.append(operation)
        if self.state.observer == "raises":
            raise LookupError("on purpose")

    def limit(self) -> int | None:
        return {"none": None, "full": 1, "last place": 2}[self.state.limit]

    async def begin(self) -> None:
        """Make the purgatory, and a wait in it."""
        observer = None if self.state.observer == "none" else self._observe
        self.clock = ManualClock()
        self.on_loop = AsyncPurgatory(
            "scene", max_pending=self.limit(), on_completed=observer, clock=self.clock
        )
        self.waits = [asyncio.create_task(self.wait(self.on_loop.wait(["a"], self.ready)))]
        await asyncio.sleep(0)
        if self.state.place == "closed":
            await self.on_loop.aclose("fail", 1)

    def ready(self) -> bool:
        """The condition of all waits."""
        return self.is_ready

    async def wait(self, waiting: Awaitable[object]) -> None:
        """Wait for an end, by an error too."""
        try:
            await waiting
        except ENDS as error:
            self.ended.append(type(error).__name__)
        else:
            self.ended.append("value")

    def report(self) -> int:
        """Make all conditions true, and tell of it."""
        self.is_ready = True
        return self.on_loop.notify("a")

    async def submit(self) -> None:
        """Submit an operation."""
        operation = Probe()
        operation.hooks["try_complete"] = lambda: setattr(operation, "ready", self.is_ready)
        self.made.append(operation)
        await self.wait(self.on_loop.submit(operation, ["a"], {"n": 3}))

    async def finish(self) -> None:
        """End all that waits yet, by one event, the time, and a close."""
        self.is_ready = True
        self.on_loop.notify("a")
        self.on_loop.advance("n", 9)
        for _ in range(3):
            await asyncio.sleep(0)
        await self.on_loop.aclose("fail", 1)
        await asyncio.wait_for(asyncio.gather(*self.waits), WAIT_S)

    def assert_over(self, calls: int) -> None:
        """Assert that all waits ended, once, and nothing is left."""
        core = self.on_loop.core
        assert len(self.ended) == len(self.waits) + calls, f"{self.ended} of {calls} calls ended"
        assert (core.num_delayed, core.watched, core.watched_keys) == (0, 0, 0)
        assert core.timer.size == 0, "a task is left on the timer"
        assert not core._state.interrupted and not core._state.lock._is_owned()
        assert not core._state.admitted, "places are taken"
        assert all(count == 1 for count in self.observed.values()), "an observer was told twice"
        for one in self.made:
            assert one._op_is_done() or one._op_state is None, one
            assert len(one.finished) == len({*one.finished}), one.finished
        core._check()


LoopAct = Callable[[LoopScene], object]


class LoopCall(NamedTuple):
    """A public call on a loop; ``waits`` says whether it ends by ``LoopScene.wait``."""

    act: LoopAct
    waits: bool = False
    covers: str = ""


def _close(policy: ClosePolicy) -> LoopAct:
    return lambda scene: scene.on_loop.aclose(policy, 1)


def _read(name: str) -> LoopCall:
    return LoopCall(lambda scene: getattr(scene.on_loop, name))


ASYNC_CALLS = {
    "wait": LoopCall(
        lambda scene: scene.wait(scene.on_loop.wait(["a", "b"], scene.ready)), waits=True
    ),
    "wait for no time": LoopCall(
        lambda scene: scene.wait(scene.on_loop.wait(["a"], scene.ready, 0)), True, "wait"
    ),
    "wait_for_threshold": LoopCall(
        lambda scene: scene.wait(scene.on_loop.wait_for_threshold("n", 3)), waits=True
    ),
    "submit": LoopCall(LoopScene.submit, waits=True),
    "notify": LoopCall(lambda scene: scene.on_loop.notify("a")),
    "event": LoopCall(lambda scene: scene.report(), covers="notify"),
    "advance": LoopCall(lambda scene: scene.on_loop.advance("n", 3)),
    "notify_threadsafe": LoopCall(lambda scene: scene.on_loop.notify_threadsafe("a")),
    "advance_threadsafe": LoopCall(lambda scene: scene.on_loop.advance_threadsafe("n", 4)),
    "check_all": LoopCall(lambda scene: scene.on_loop.check_all()),
    "complete_for_key": LoopCall(lambda scene: scene.on_loop.complete_for_key("b")),
    "fail_for_key": LoopCall(lambda scene: scene.on_loop.fail_for_key("a", LookupError())),
    "cancel_for_key": LoopCall(lambda scene: scene.on_loop.cancel_for_key("a")),
    "forget": LoopCall(lambda scene: scene.on_loop.forget("n")),
    "value": LoopCall(lambda scene: scene.on_loop.value("n")),
    "keys": LoopCall(lambda scene: scene.on_loop.keys()),
    "aclose by expiry": LoopCall(_close("expire"), covers="aclose"),
    "aclose by failure": LoopCall(_close("fail"), covers="aclose"),
    "aclose by leaving": LoopCall(_close("leave"), covers="aclose"),
    **{
        name: _read(name)
        for name in ("name", "watched", "watched_keys", "num_delayed", "counters", "core")
    },
}
"""All calls of an `AsyncPurgatory`."""


class Store:
    """The values that purgatories of several processes wait for."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {"s": 2}

    def read(self, keys: list[str]) -> dict[str, int]:
        """Return the values of these keys."""
        return {key: self.values[key] for key in keys if key in self.values}


@dataclass
class SharedScene(LoopScene):
    """A purgatory whose values come from a store, by a relay that tells nobody."""

    async def begin(self) -> None:
        """Make the purgatory, and a wait in it."""
        self.store = Store()
        self.shared = SharedPurgatory(
            "scene", SilentRelay(), self.store.read, 60, max_pending=self.limit()
        )
        self.on_loop = self.shared.local
        await self.shared.__aenter__()
        self.waits = [asyncio.create_task(self.wait(self.shared.wait(["a"], self.ready)))]
        await asyncio.sleep(0)
        if self.state.place == "closed":
            await self.shared.aclose("fail", 1)

    async def finish(self) -> None:
        """End all that waits yet."""
        self.is_ready = True
        self.store.values["n"] = 9
        with suppress(RuntimeError):
            await self.shared.read_all()
        await self.shared.aclose("fail", 1)
        await asyncio.wait_for(asyncio.gather(*self.waits), WAIT_S)

    def assert_over(self, calls: int) -> None:
        """Assert that all waits ended, once, and nothing is left."""
        super().assert_over(calls)
        self.shared._check()
        assert not self.shared._waits and not self.shared._conditions


def _shared(act: Callable[[Any], object], waits: bool = False, covers: str = "") -> LoopCall:
    return LoopCall(act, waits, covers)


SHARED_CALLS = {
    "wait": _shared(lambda scene: scene.wait(scene.shared.wait(["a"], scene.ready)), True),
    "wait_for_threshold": _shared(
        lambda scene: scene.wait(scene.shared.wait_for_threshold("n", 3)), True
    ),
    "wait for the store": _shared(
        lambda scene: scene.wait(scene.shared.wait_for_threshold("s", 2)),
        True,
        "wait_for_threshold",
    ),
    "advance": _shared(lambda scene: scene.shared.advance("n", 3)),
    "notify": _shared(lambda scene: scene.shared.notify("a")),
    "receive": _shared(lambda scene: scene.shared.receive("n", 3)),
    "read_all": _shared(lambda scene: scene.shared.read_all()),
    "aclose": _shared(lambda scene: scene.shared.aclose("fail", 1)),
    "aclose by leaving": _shared(lambda scene: scene.shared.aclose("leave", 1), covers="aclose"),
    **{
        name: _shared(lambda scene, name=name: getattr(scene.shared, name))  # type: ignore[misc]
        for name in ("name", "relay", "local", "reads", "read_failures")
    },
}
"""All calls of a `SharedPurgatory`."""

THREADED_CALLS: dict[str, Callable[[ThreadedSharedPurgatory], object]] = {
    "wait": lambda shared: shared.wait(["a"], lambda: True, 1),
    "wait_for_threshold": lambda shared: shared.wait_for_threshold("s", 2, 1),
    "advance": lambda shared: shared.advance("n", 3),
    "notify": lambda shared: shared.notify("a"),
    "close": lambda shared: shared.close("fail", 1),
    "name": lambda shared: shared.name,
    "relay": lambda shared: shared.relay,
    "shared": lambda shared: shared.shared,
}
"""All calls of a `ThreadedSharedPurgatory`."""
