"""A future of the response that a broker's model gives by a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from purgatory.core.errors import PurgatoryClosedError

T = TypeVar("T")
_COORDINATOR_TIMEOUT_S = 6.0
"""Longer than what it writes may take to be replicated."""


def response_future(request: Callable[[Callable[[T], object]], object]) -> asyncio.Future[T]:
    """Call ``ask(respond)``, and return a future of what ``respond`` takes.

    A broker that was killed just now sends no response any more: then the future waits until the
    client's connection is cut.
    """
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def respond(result: T) -> None:
        if not future.done():  # the client may be gone
            future.set_result(result)

    try:  # noqa: SIM105  # `suppress` costs more than all the rest
        request(respond)
    except PurgatoryClosedError:
        pass
    return future


async def coordinator_response(
    request: Callable[[Callable[[T], object]], object], timeout_result: T
) -> T:
    """As ``response_future``, of another broker's model: ``timeout_result`` if it doesn't respond.

    It may have been killed, which cuts no connection of the client's that waits here.
    """
    result = response_future(request)
    if result.done():
        return result.result()
    try:
        return await asyncio.wait_for(result, _COORDINATOR_TIMEOUT_S)
    except TimeoutError:
        return timeout_result
