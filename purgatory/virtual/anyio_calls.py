"""What anyio would call on threads of its own is called in a world as what an executor is given.

So FastAPI, Starlette and others who build on anyio may have plain functions among their coroutines.

Ground rules: only the thread that entered a world touches it.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

_BACKEND: Final = "anyio._backends._asyncio"


class AnyioCalls:
    """Has anyio's calls made by the loop of a world, between `begin` and `end`."""

    def __init__(self) -> None:
        self._backend: Any = None
        self._original: Any = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, once anyio is imported. Again: no effect."""
        if "anyio" not in sys.modules or self._backend is not None:
            return
        backend: Any = getattr(importlib.import_module(_BACKEND), "backend_class", None)
        if backend is None:
            return  # an anyio before 4: its threads are refused as all others are
        original = backend.run_sync_in_worker_thread

        async def call(
            func: Callable[..., Any],
            args: tuple[Any, ...],
            abandon_on_cancel: bool = False,
            limiter: Any = None,
        ) -> Any:
            if asyncio.get_running_loop() is not loop:
                return await original(func, args, abandon_on_cancel, limiter)
            await backend.checkpoint()
            async with limiter or backend.current_default_thread_limiter():
                context = contextvars.copy_context()
                called = loop.run_in_executor(None, partial(context.run, func, *args))
                with backend.create_cancel_scope(shield=not abandon_on_cancel):
                    return await called

        self._backend, self._original = backend, backend.__dict__["run_sync_in_worker_thread"]
        backend.run_sync_in_worker_thread = staticmethod(call)

    def end(self) -> None:
        """Let it do what it did."""
        if self._backend is not None:
            self._backend.run_sync_in_worker_thread = self._original
            self._backend = None
