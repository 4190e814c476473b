"""Servers beside tests that block: each runs on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def own_loop(serve: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Serve until the `with` block is left; yields what the server yields."""
    started = threading.Event()
    served: list[T] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        async with serve() as value:
            served.append(value)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    try:
        assert started.wait(60)
        yield served[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        loop.close()
