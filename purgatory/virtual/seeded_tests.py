"""Tests that run in a world, once for each seed, and repeated in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from purgatory.virtual.clocks import real_perf_counter, real_time
from purgatory.virtual.errors import WorldError
from purgatory.virtual.failure_report import HASH_SEED, RepeatedTest, WorldFailure
from purgatory.virtual.world import World

SEEDS = 20
"""How many seeds a test has that does not say how many."""


def seeds_of(
    marked: int | None, option_seeds: int | None, option_seed: int | None
) -> Sequence[int]:
    """Return the seeds of a test.

    Args:
        marked: how many its mark asks for; None: it doesn't say.
        option_seeds: how many the command line asks for.
        option_seed: the one that the command line asks for.

    Raises:
        ValueError: fewer than one.
    """
    if option_seed is not None:
        return [option_seed]
    count = option_seeds or (SEEDS if marked is None else marked)
    if count < 1:
        raise ValueError(f"a test runs at least once: seeds={count}")
    return range(count)


def keep_pytest_clocks() -> None:
    """Have pytest measure how long tests take in the machine's time, also within a world."""
    from _pytest import timing

    for name, real in (("time", real_time), ("perf_counter", real_perf_counter)):
        if hasattr(timing, name):
            setattr(timing, name, real)


def in_world(world: World, function: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
    """Return a plain function that runs a coroutine function in a world."""

    @wraps(function)
    def run(**arguments: Any) -> Any:
        __tracebackhide__ = True
        return world.run(function(**arguments))

    del run.__wrapped__  # what it takes is known by now, and it is no coroutine function
    return run


def generated_in_world(
    world: World,
    function: Callable[..., AsyncGenerator[Any, None]],
    add_finalizer: Callable[[Callable[[], None]], None],
) -> Any:
    """Return a plain function that runs an asynchronous generator in a world up to what it yields.

    Args:
        world: in which.
        function: makes the generator, and is given its arguments by their names.
        add_finalizer: has a function called in the end; it is given what runs the rest of it.
    """

    def run(**arguments: Any) -> Any:
        generator = function(**arguments)
        add_finalizer(lambda: world.run(_rest(generator)))
        return world.run(_first(generator))

    return run


async def _first(generator: AsyncGenerator[Any, None]) -> Any:
    return await anext(generator)


async def _rest(generator: AsyncGenerator[Any, None]) -> None:
    async for _ in generator:
        await generator.aclose()
        raise ValueError("an asynchronous fixture yields once, and this one did so again")


_HASH_SEED_IF_NONE: Final = "0"
_LONGEST_OVER_FIRST: Final = 5
"""How many times as long as the first attempt another may take: what hangs is no such failure."""

_LEAST_LIMIT_S: Final = 10.0
_SHOWN_CHARACTERS: Final = 1_000


class OutOfTimeError(WorldError):
    """There is no time for another attempt."""


class Repeating:
    """Repeats tests until a time; each is given to pytest in a process of its own.

    Args:
        options: what pytest is given beside the test.
        folder: where it is started.
        limit_s: how long all attempts may take.
    """

    def __init__(self, options: Sequence[str], folder: Path, limit_s: float) -> None:
        self._options = options
        self._folder = folder
        self._until_s = time.monotonic() + limit_s
        self._longest_s: float | None = None
        self.attempts = 0
        self.said = ""
        """The end of what pytest printed at the last attempt."""

    @property
    def left_s(self) -> float:
        """How much time is left."""
        return max(0.0, self._until_s - time.monotonic())

    def attempt(self, test: RepeatedTest) -> WorldFailure | None:
        """Run a test once; return how it failed, None where it did not or was not done in time.

        Raises:
            OutOfTimeError: there is no time left.
            OSError: no process can be started.
        """
        began_s, left_s = time.monotonic(), self.left_s
        if not left_s:
            raise OutOfTimeError("there is no time for another attempt")
        limit_s = left_s if self._longest_s is None else min(left_s, self._longest_s)
        self.attempts += 1
        with TemporaryDirectory() as folder:
            failure = self._run(test, Path(folder), limit_s)
        if failure is None and not self.left_s:
            raise OutOfTimeError("the time was over before the test was")
        if self._longest_s is None:
            taken_s = time.monotonic() - began_s
            self._longest_s = max(_LEAST_LIMIT_S, _LONGEST_OVER_FIRST * taken_s)
        return failure

    def _run(self, test: RepeatedTest, folder: Path, limit_s: float) -> WorldFailure | None:
        """Run a test, which writes how it failed into a file: what it prints is for people."""
        told, printed = folder / "failure", folder / "printed"
        words = [*self._options, "--virtual-attempt", str(told), *test.words]
        with printed.open("wb") as out:
            try:
                subprocess.run(
                    [sys.executable, "-m", "pytest", *words],
                    cwd=self._folder,
                    env=attempt_environment(os.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    timeout=limit_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return None
        self.said = printed.read_text(errors="replace")[-_SHOWN_CHARACTERS:].strip()
        try:
            return WorldFailure.from_text(told.read_text())
        except (FileNotFoundError, ValueError):
            return None


def attempt_environment(own: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of an attempt: one in which sets of strings are always ordered alike,
    and in which is imported from where it is here."""
    given = own.get(HASH_SEED, "")
    return {
        **own,
        HASH_SEED: given if given.isdecimal() else _HASH_SEED_IF_NONE,
        "PYTHONPATH": os.pathsep.join(one for one in sys.path if one),
    }
