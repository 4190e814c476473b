"""Ctrl-C while a world is entered or left restores the state before it."""

from __future__ import annotations

import asyncio
import datetime
import gc
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from asyncio import events, runners
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from purgatory.virtual import World

_WATCHED = os.sep + os.path.join("purgatory", "virtual") + os.sep


def _state() -> tuple[object, ...]:
    """The state that a world patches."""
    return (
        random.getstate(),
        random.Random.seed,
        uuid._node,  # type: ignore[attr-defined]
        socket.socket,
        socket.getaddrinfo,
        socket.socketpair,
        threading.Thread.start,
        threading.Condition.wait,
        events.new_event_loop,
        runners.Runner.run,
        signal.getsignal(signal.SIGINT),
        sys.get_asyncgen_hooks(),
        events._get_running_loop(),
    )


def _is_world_time() -> bool:
    """Whether the time is within seconds of a world's beginning."""
    return time.time() - datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp() < 10


class _Interrupting:
    """Interrupts the program, as Ctrl-C does, at the n-th line that runs of a world's code."""

    def __init__(self, at: int) -> None:
        self.lines = 0
        self.where = ""
        self._at = at

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        if _WATCHED not in path or frame.f_code.co_qualname.startswith("DeferredSignals."):
            return None
        if event not in ("call", "line"):
            return self
        self.lines += 1
        if self.lines == self._at:
            self.where = f"{path}:{frame.f_lineno}"
            handler = signal.getsignal(signal.SIGINT)
            assert callable(handler)
            handler(signal.SIGINT, frame)
        return self


async def _application() -> None:
    task = asyncio.create_task(asyncio.sleep(100))
    await asyncio.sleep(1)
    assert not task.done()


def _enter_and_leave(interrupting: _Interrupting, in_enter: bool) -> bool:
    """Enter and leave a world, and interrupt one of both; return whether KeyboardInterrupt came."""
    world = World()
    sys.settrace(interrupting if in_enter else None)
    try:
        with world:
            sys.settrace(None)
            world.run(_application())
            sys.settrace(None if in_enter else interrupting)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.fixture(autouse=True)
def _ctrl_c_interrupts() -> Iterator[None]:
    """Enable Ctrl-C, which a process that a shell starts in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """Disable the collection of cycles, as exceptions during it are dropped."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.usefixtures("no_garbage")
@pytest.mark.filterwarnings("ignore")  # interrupted code may leave tasks and coroutines
@pytest.mark.parametrize("in_enter", [True, False])
def test_interrupt_at_any_line_restores_the_former_state(in_enter: bool) -> None:
    before = _state()
    whole = _Interrupting(0)
    assert not _enter_and_leave(whole, in_enter)
    assert whole.lines > 100
    assert _state() == before
    for at in range(1, whole.lines + 1):
        interrupting = _Interrupting(at)
        was_raised = _enter_and_leave(interrupting, in_enter)
        assert _state() == before, interrupting.where
        assert not _is_world_time(), interrupting.where
        assert was_raised == bool(interrupting.where), interrupting.where
    with World() as world:
        world.run(_application())


def test_ctrl_c_interrupts_the_running_application() -> None:
    async def application() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(1)

    before = _state()
    with pytest.raises(KeyboardInterrupt), World() as world:
        world.run(application())
    assert _state() == before


class _InterruptingRuns(_Interrupting):
    """Interrupts at the n-th line that asyncio runs to begin or end a run."""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.endswith("base_events.py") or "run_forever" not in code.co_name:
            return None
        if event in ("line", "return"):
            self.lines += 1
            if self.lines == self._at:
                self.where = f"{code.co_name}:{frame.f_lineno}:{event}"
                raise KeyboardInterrupt
        return self


def test_interrupt_as_a_run_begins_or_ends_is_raised() -> None:
    before = _state()
    for at in range(1, 200):
        interrupting = _InterruptingRuns(at)
        try:
            with World() as world:
                sys.settrace(interrupting)
                try:
                    world.run(_application())
                finally:
                    sys.settrace(None)
        except KeyboardInterrupt:
            pass
        assert _state() == before, interrupting.where
        if not interrupting.where:
            break
    assert at > 10


def test_another_signal_handler_is_called_and_restored() -> None:
    called: list[int] = []

    def other(number: int, frame: FrameType | None) -> None:
        called.append(number)

    signal.signal(signal.SIGINT, other)
    with World():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is other
    assert called == [signal.SIGINT]


_ASKS_FOR_THE_TIME = """
import asyncio, random, signal, sys, time
from purgatory.virtual import World

async def application():
    for _ in range(3_000):
        for _ in range(100):
            time.time(), time.monotonic()
        await asyncio.sleep(0.001)

def interrupt(*ignored):
    raise KeyboardInterrupt

chance = random.Random(1)
interrupted = 0
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGALRM, interrupt if sys.argv[1] == "alarm" else
              lambda *ignored: signal.raise_signal(signal.SIGINT))
for _ in range(100):
    try:
        with World() as world:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.001, 0.01))
            world.run(application(), None)
    except KeyboardInterrupt:
        interrupted += 1
print(interrupted)
"""


@pytest.mark.slow
@pytest.mark.parametrize("by", ["ctrl-c", "alarm"])
def test_interrupt_while_reading_the_clock_is_raised(by: str) -> None:
    """Nearly all interrupts meet the replacement of a C function, from which none can propagate."""
    command = [sys.executable, "-W", "ignore", "-c", _ASKS_FOR_THE_TIME, by]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.count("ctypes callback")) == (0, 0), ran.stderr
    # Python drops exceptions in callbacks of weak references, of which asyncio has some.
    assert int(ran.stdout) >= 95
