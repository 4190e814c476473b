"""An event loop in virtual time, and ways to run a coroutine on it or on real loops."""

from __future__ import annotations

import asyncio
import gc
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from inspect import unwrap
from typing import Any, TypeVar

import pytest
import uvloop

from purgatory import AsyncPurgatory
from purgatory.virtual import World
from purgatory.virtual.clocks import US_PER_S
from purgatory.virtual.loop import VirtualLoop as WorldLoop
from timer import Clock
from timer.wake import Wake

T = TypeVar("T")
Main = Callable[[], Coroutine[Any, Any, T]]


class _NoWaitSelector(selectors.SelectSelector):
    """Instead of waiting for its timeout, moves the loop's time by it."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("nothing will ever happen on this loop: a wait was forgotten")
            self.loop.now_ns += max(0, round(timeout * 1e9))
            self.loop.iterations += 1
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time jumps to the next timer. ``iterations`` counts how often it looked."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.iterations = 0
        selector = _NoWaitSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now_ns / 1e9


class LoopClock(Clock):
    """The time of the running loop, which is in virtual time."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop | WorldLoop)
        self._loop = loop

    def now_ns(self) -> int:
        if isinstance(self._loop, WorldLoop):
            return self._loop.clock.now_ns()
        return self._loop.now_ns

    def wait(self, wake: Wake, until_ns: int) -> bool:
        raise AssertionError("a loop's purgatory never waits on a thread")


class _Chosen:
    """The loop of `run_virtually`."""

    in_world = False


@pytest.fixture(autouse=True)
def virtual_time_of(request: pytest.FixtureRequest) -> Iterator[None]:
    """Choose the virtual time of a test: this module's loop, or a world."""
    _Chosen.in_world = getattr(request, "param", "loop") == "world"
    yield
    _Chosen.in_world = False


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have what runs in virtual time run on this module's loop, and again in a world."""
    if "run_virtually" in unwrap(metafunc.function).__code__.co_names:
        metafunc.parametrize("virtual_time_of", ["loop", "world"], indirect=True)


def run_virtually(main: Main[T]) -> T:
    """Run ``main()`` in virtual time."""
    if _Chosen.in_world:
        with World(allow=["threads"]) as world:  # in which some tests wake others
            return world.run(main(), None)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def passed_s() -> float:
    """The age of the running loop, which is in virtual time."""
    loop = asyncio.get_running_loop()
    return loop.clock.elapsed_us / US_PER_S if isinstance(loop, WorldLoop) else loop.time()


def block(seconds: float) -> None:
    """Block the running loop, which is in virtual time, for so long."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        loop.now_ns += round(seconds * 1e9)
    else:
        time.sleep(seconds)


def turns() -> int:
    """The number of times that the running loop, in virtual time, has looked for due timers."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop | WorldLoop)
    return loop.iterations


def new_purgatory(name: str = "Fetch", **options: Any) -> AsyncPurgatory:
    """Return a purgatory in virtual time."""
    return AsyncPurgatory(name, clock=LoopClock(), **options)


@pytest.fixture(params=["asyncio", "uvloop"])
def run_really(request: pytest.FixtureRequest) -> Callable[[Main[Any]], Any]:
    """Return what runs a coroutine by the machine's clock: on asyncio's loop, and on uvloop's."""
    new_loop = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run(main: Main[Any]) -> Any:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            result = runner.run(main())
        gc.collect()
        return result

    return run


async def run_ready() -> None:
    """Let every task go on until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)
