"""The debug pages as an ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from typing import Any, TypeAlias

from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.debug.debug_pages import DebugPages

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


def asgi_app(
    purgatories: Iterable[DelayedOperationPurgatory | AsyncPurgatory] | None = None,
) -> Callable[[Message, Receive, Send], Coroutine[Any, Any, None]]:
    """Return an ASGI application with the page, and with ``state``, its data as JSON.

    A thread samples the counters every five seconds from now on, for what is told of the last
    minutes.

    Args:
        purgatories: which are told of; by default all of this process, those made later too.
    """
    pages = DebugPages(purgatories)

    async def application(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # served by itself, not mounted
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"the debug pages speak HTTP only, not {scope['type']!r}")
        mounted_at = scope.get("root_path", "")
        path = scope["path"].removeprefix(mounted_at)
        answer = pages.answer(scope["method"], path, mounted_at)
        headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else answer.body
        await send({"type": "http.response.body", "body": body})

    return application


async def _live(receive: Receive, send: Send) -> None:
    for kind in ("startup", "shutdown"):
        while (await receive())["type"] != f"lifespan.{kind}":
            pass
        await send({"type": f"lifespan.{kind}.complete"})
