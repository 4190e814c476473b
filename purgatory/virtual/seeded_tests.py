"""Tests that run in a virtual world, once for each of some seeds: see `purgatory.pytest_plugin`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from purgatory.virtual.seen_time import real_perf_counter, real_time
from purgatory.virtual.virtual_world import World

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


def keep_pytests_times() -> None:
    """Have pytest measure how long tests take in the machine's time, also within a world."""
    from _pytest import timing

    for name, real in (("time", real_time), ("perf_counter", real_perf_counter)):
        if hasattr(timing, name):
            setattr(timing, name, real)


def run_in_world(world: World, function: Any, arguments: Mapping[str, Any]) -> bool:
    """Run a test that is a coroutine function in its world; say whether it is one.

    Args:
        world: its own.
        function: the test.
        arguments: its fixtures by name; more than it takes.
    """
    if not inspect.iscoroutinefunction(function):
        return False
    taken = inspect.signature(function).parameters
    world.run(function(**{name: arguments[name] for name in taken if name in arguments}))
    return True
