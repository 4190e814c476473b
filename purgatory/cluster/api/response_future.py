"""Futures of responses that a broker's model passes to callbacks.

response_future         the response of this broker
saved_response          the same, once the controller's decisions are saved
coordinator_response    the response of another broker, which may have been killed
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from purgatory.cluster.metadata import ClusterMetadata
from purgatory.core.errors import PurgatoryClosedError

T = TypeVar("T")
_COORDINATOR_TIMEOUT_S = 6.0
"""A longer time than the replication of the coordinator's records may take."""


def response_future(request: Callable[[Callable[[T], object]], object]) -> asyncio.Future[T]:
    """Call ``request(respond)``, and return a future of the value passed to ``respond``.

    If the broker is killed, the future stays pending until the client's connection is closed.
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


async def saved_response(
    cluster: ClusterMetadata,
    request: Callable[[Callable[[T], object]], object],
    unsaved: T,
) -> T:
    """As ``response_future``; ``unsaved``, while the controller's decisions can't be saved.

    Until they are saved, nothing may be acknowledged: after a restart the topic might be missing,
    or the ISR might be one of brokers that lack the records.
    """
    if not cluster.is_saved():
        return unsaved
    result = await response_future(request)
    return result if cluster.is_saved() else unsaved


async def coordinator_response(
    request: Callable[[Callable[[T], object]], object], timeout_result: T
) -> T:
    """As ``response_future``, for another broker: ``timeout_result`` if it doesn't respond.

    The other broker may have been killed, which does not close the client's connection to this one.
    """
    result = response_future(request)
    if result.done():
        return result.result()
    try:
        return await asyncio.wait_for(result, _COORDINATOR_TIMEOUT_S)
    except TimeoutError:
        return timeout_result
