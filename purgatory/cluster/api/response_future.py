"""A future of the response that a broker's model gives by a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from purgatory.core.errors import PurgatoryClosedError

T = TypeVar("T")
_COORDINATOR_TIMEOUT_S = 6.0
"""Longer than what it writes may take to be replicated."""


def response_future(ask: Callable[[Callable[[T], object]], object]) -> asyncio.Future[T]:
    """Call ``ask(respond)``, and return a future of what ``respond`` takes.

    A broker that was killed just now answers nobody any more: then the future waits until the
    client's connection is cut.
    """
    answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def respond(answer: T) -> None:
        if not answered.done():  # the client may be gone
            answered.set_result(answer)

    try:  # noqa: SIM105  # `suppress` costs more than all the rest
        ask(respond)
    except PurgatoryClosedError:
        pass
    return answered


async def coordinator_response(ask: Callable[[Callable[[T], object]], object], silent: T) -> T:
    """As ``response_future``, of another broker's model: ``silent`` if it doesn't answer.

    It may have been killed, which cuts no connection of the client's that waits here.
    """
    answer = response_future(ask)
    if answer.done():
        return answer.result()
    try:
        return await asyncio.wait_for(answer, _COORDINATOR_TIMEOUT_S)
    except TimeoutError:
        return silent
