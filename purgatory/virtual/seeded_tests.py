"""Tests that run in a virtual world, once for each of some seeds: see `purgatory.pytest_plugin`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from functools import wraps
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
