"""A store that records who reads it, and what coroutines of these tests share."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from tests.databases.shared.servers import LIMIT_S

P = ParamSpec("P")
HOUR_S = 3600.0
"""A resync interval after which no test waits: what ends a wait is a message, or the first read."""


class Store:
    """The truth that all processes read."""

    def __init__(self, **values: int) -> None:
        self.values = dict(values)
        self.reads: list[list[str]] = []

    def read(self, keys: list[str]) -> dict[str, int]:
        """The function that a `SharedPurgatory` calls."""
        self.reads.append(keys)
        return {key: self.values[key] for key in keys if key in self.values}

    def has_read(self, *keys: str) -> bool:
        """Whether each key was read: subscribed before that, its messages arrive from then on."""
        return set(keys) <= {key for some in self.reads for key in some}


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on a loop of its own; it may leave no task, and log no error of the loop."""

    async def run_test(*args: P.args, **kwargs: P.kwargs) -> None:
        errors: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        async with asyncio.timeout(45):
            await test(*args, **kwargs)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left: {left}"
        assert not errors

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(run_test(*args, **kwargs))

    return run


async def eventually(condition: Callable[[], object], what: str) -> None:
    """Return once a condition, or what it returns to be awaited, holds."""
    end_s = asyncio.get_running_loop().time() + LIMIT_S
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        if asyncio.get_running_loop().time() > end_s:
            raise AssertionError(f"within {LIMIT_S:.0f} s: not {what}")
        await asyncio.sleep(0.01)


async def in_time(awaitable: Any) -> Any:
    """Return what a coroutine, task or future does, within a generous limit."""
    async with asyncio.timeout(LIMIT_S):
        return await awaitable
