"""Tests that run in a world once per seed, and their repetition in other processes."""

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
"""The default number of seeds of a test."""


def seeds_of(
    marker_seeds: int | None, option_seeds: int | None, option_seed: int | None
) -> Sequence[int]:
    """Return the seeds of a test.

    Args:
        marker_seeds: the number in its mark, if any.
        option_seeds: the number on the command line, if any.
        option_seed: the seed on the command line, if any.

    Raises:
        ValueError: fewer than one.
    """
    if option_seed is not None:
        return [option_seed]
    count = option_seeds or (SEEDS if marker_seeds is None else marker_seeds)
    if count < 1:
        raise ValueError(f"a test runs at least once: seeds={count}")
    return range(count)


def keep_pytest_clocks() -> None:
    """Have pytest measure durations by the machine's clock, also in a world."""
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

    del run.__wrapped__  # pytest must not take it for a coroutine function
    return run


def fixture_in_world(
    world: World,
    function: Callable[..., AsyncGenerator[Any, None]],
    add_finalizer: Callable[[Callable[[], None]], None],
) -> Any:
    """Return a plain function that runs an asynchronous fixture in a world up to its yield.

    Args:
        function: makes the generator from keyword arguments.
        add_finalizer: takes the function that runs the rest of the generator.
    """

    def run(**arguments: Any) -> Any:
        generator = function(**arguments)
        add_finalizer(lambda: world.run(_teardown_fixture(generator)))
        return world.run(_setup_fixture(generator))

    return run


async def _setup_fixture(generator: AsyncGenerator[Any, None]) -> Any:
    return await anext(generator)


async def _teardown_fixture(generator: AsyncGenerator[Any, None]) -> None:
    async for _ in generator:
        await generator.aclose()
        raise ValueError("an asynchronous fixture yields once, and this one did so again")


_DEFAULT_HASH_SEED: Final = "0"
_MAX_FIRST_RUN_RATIO: Final = 5
"""An attempt may take so many times as long as the first; a hang is another failure."""

_MIN_LIMIT_S: Final = 10.0
_OUTPUT_CHARACTERS: Final = 1_000


class TimeLimitError(WorldError):
    """The time limit does not allow another attempt."""


class Repeater:
    """Repeats tests within a time limit, each in a pytest process of its own.

    Args:
        options: of pytest, beside the test.
        folder: the working directory.
        limit_s: the limit for all attempts together.
    """

    def __init__(self, options: Sequence[str], folder: Path, limit_s: float) -> None:
        self._options = options
        self._folder = folder
        self._until_s = time.monotonic() + limit_s
        self._longest_s: float | None = None
        self.attempts = 0
        self.output = ""
        """The end of what pytest printed at the last attempt."""

    @property
    def left_s(self) -> float:
        """The remaining time."""
        return max(0.0, self._until_s - time.monotonic())

    def attempt(self, test: RepeatedTest) -> WorldFailure | None:
        """Run a test once; return its failure, None if it passed or timed out.

        Raises:
            TimeLimitError: there is no time left.
            OSError: no process can be started.
        """
        began_s, left_s = time.monotonic(), self.left_s
        if not left_s:
            raise TimeLimitError("there is no time for another attempt")
        limit_s = left_s if self._longest_s is None else min(left_s, self._longest_s)
        self.attempts += 1
        with TemporaryDirectory() as folder:
            failure = self._run(test, Path(folder), limit_s)
        if failure is None and not self.left_s:
            raise TimeLimitError("the time was over before the test was")
        if self._longest_s is None:
            taken_s = time.monotonic() - began_s
            self._longest_s = max(_MIN_LIMIT_S, _MAX_FIRST_RUN_RATIO * taken_s)
        return failure

    def _run(self, test: RepeatedTest, folder: Path, limit_s: float) -> WorldFailure | None:
        """Run a test, which writes its failure into a file."""
        report, output = folder / "failure", folder / "printed"
        arguments = [*self._options, "--virtual-attempt", str(report), *test.arguments]
        with output.open("wb") as out:
            try:
                subprocess.run(
                    [sys.executable, "-m", "pytest", *arguments],
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
        self.output = output.read_text(errors="replace")[-_OUTPUT_CHARACTERS:].strip()
        try:
            return WorldFailure.from_json(report.read_text())
        except (FileNotFoundError, ValueError):
            return None


def attempt_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of an attempt, with the same order of sets of strings and the same
    import path."""
    hash_seed = environment.get(HASH_SEED, "")
    return {
        **environment,
        HASH_SEED: hash_seed if hash_seed.isdecimal() else _DEFAULT_HASH_SEED,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
