"""How a broker's coordinator of transactions brings markers to the brokers that lead.

Ground rules
------------
* Everything happens on the event loop's thread.
* What is sent is answered once, by the broker that it was sent to, or because that one's process
  died: so it can't have an effect after it was answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from purgatory.cluster.cluster_metadata import ClusterMetadata, Peer
from purgatory.core.errors import PurgatoryClosedError
from purgatory.kafka import ErrorCode, RecordBatch, ReplicaManager, TopicPartition, write_markers

Codes = Mapping[TopicPartition, ErrorCode]


class MarkerSending:
    """The cluster, as the coordinator of one broker sees it (`MarkerRoutes`).

    Args:
        sender: the coordinator's broker.
        cluster: its cluster; its faults lie between the brokers.
    """

    def __init__(self, sender: Peer, cluster: ClusterMetadata) -> None:
        self._sender = sender
        self._cluster = cluster
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Future[Codes], ReplicaManager] = {}

    def leader_of(self, topic_partition: TopicPartition) -> int | None:
        """Return who leads a partition, -1 if nobody does now; None: there is no such one."""
        state = self._cluster.controller.state_of(topic_partition)
        return None if state is None else state.leader

    def send_markers(
        self,
        broker_id: int,
        markers: Mapping[TopicPartition, RecordBatch],
        respond: Callable[[Codes], object],
    ) -> None:
        """Bring markers to a broker; ``respond`` is told what became of them."""
        task = asyncio.get_running_loop().create_task(self._send(broker_id, markers, respond))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def look_who_lives(self) -> None:
        """Wait no more for brokers that died meanwhile."""
        alive = {id(one.manager) for one in self._cluster.brokers.values() if one.alive}
        for answered, manager in self._waiting.items():
            if id(manager) not in alive and not answered.done():
                answered.set_result({})

    async def stop(self) -> None:
        """End: the coordinator's broker is gone."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _send(
        self,
        broker_id: int,
        markers: Mapping[TopicPartition, RecordBatch],
        respond: Callable[[Codes], object],
    ) -> None:
        fault, sender_id = self._cluster.fault, self._sender.broker_id
        await fault.pass_link(sender_id, broker_id)
        codes = await self._written(broker_id, markers)
        await fault.pass_link(sender_id, broker_id)
        refused = dict.fromkeys(markers, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        respond({**refused, **codes})

    async def _written(
        self, broker_id: int, markers: Mapping[TopicPartition, RecordBatch]
    ) -> Codes:
        leader = self._cluster.live_broker(broker_id)
        if leader is None:
            return {}
        answered: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()

        def written(codes: Codes) -> None:
            if not answered.done():
                answered.set_result(codes)

        self._waiting[answered] = leader.manager
        try:
            write_markers(leader.manager, leader.groups, markers, written)
            return await answered
        except PurgatoryClosedError:
            return {}
        finally:
            del self._waiting[answered]
