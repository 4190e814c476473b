"""What a broker asks of another one of its cluster, and waits for.

Ground rules
------------
* Everything happens on the event loop's thread.
* What is asked is answered once, by the broker that it was asked of, or because that one's process
  died: so it can't have an effect after it was answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from purgatory.cluster.cluster_metadata import ClusterMetadata, Peer
from purgatory.core.errors import PurgatoryClosedError
from purgatory.kafka import ReplicaManager

T = TypeVar("T")

_LOOK_AGAIN_S = 0.05


class PeerCalls:
    """The other brokers, as one sees them.

    Args:
        sender: who asks.
        cluster: its cluster; its faults lie between the brokers.
    """

    def __init__(self, sender: Peer, cluster: ClusterMetadata) -> None:
        self._sender = sender
        self._cluster = cluster
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Future[Any], ReplicaManager] = {}

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done that asks others; it ends with its broker."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def ask(
        self,
        broker_id: int,
        question: Callable[[Peer, Callable[[T], object]], object],
        is_moot: Callable[[], bool] = lambda: False,
    ) -> T | None:
        """Call ``question(broker, respond)``, and return what ``respond`` takes; None: it died.

        Args:
            broker_id: who is asked.
            question: as above.
            is_moot: looked at from time to time while the link is cut: whether somebody else is to
                be asked by now. Then it is None as well, and the question can have no more effect.
        """
        if not await self._pass_link(broker_id, is_moot):
            return None
        answer = await self._answer(broker_id, question)
        return answer if await self._pass_link(broker_id, is_moot) else None

    async def _pass_link(self, broker_id: int, is_moot: Callable[[], bool]) -> bool:
        while self._cluster.fault.cuts_off(self._sender.broker_id, broker_id):
            if is_moot():
                return False
            await asyncio.sleep(_LOOK_AGAIN_S)
        return True

    async def _answer(
        self, broker_id: int, question: Callable[[Peer, Callable[[T], object]], object]
    ) -> T | None:
        broker = self._cluster.live_broker(broker_id)
        if broker is None:
            return None
        answered: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()

        def respond(answer: T) -> None:
            if not answered.done():
                answered.set_result(answer)

        self._waiting[answered] = broker.manager
        try:
            question(broker, respond)
            return await answered
        except PurgatoryClosedError:
            return None
        finally:
            del self._waiting[answered]

    def look_who_lives(self) -> None:
        """Wait no more for brokers that died meanwhile."""
        alive = {id(one.manager) for one in self._cluster.brokers.values() if one.alive}
        for answered, manager in self._waiting.items():
            if id(manager) not in alive and not answered.done():
                answered.set_result(None)

    async def stop(self) -> None:
        """End: the broker that asks is gone."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
