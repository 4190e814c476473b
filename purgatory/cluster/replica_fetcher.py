"""The replica fetcher: for each broker that leads, one task that copies from there.

It fetches as Kafka's followers do: its offset tells the leader how far it is, which moves the high
watermark; what it waits for waits in the leader's Fetch purgatory. What it requests, and what it
does with the responses, is decided in `purgatory.kafka.replication.replica_fetcher`. It keeps a
fetch session with the leader, so it sends only what changed.

Ground rules
------------
* Everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from purgatory.cluster.metadata import ClusterMetadata, Peer
from purgatory.core.errors import PurgatoryClosedError
from purgatory.kafka import FetchParams, ReplicaManager, TopicPartition
from purgatory.kafka.replication.fetch_session import PartitionResponses
from purgatory.kafka.replication.replica_fetcher import BACKOFF_MS, FollowerFetching

_MAX_WAIT_MS = 500


class ReplicaFetcher:
    """Copies from one leader.

    Args:
        follower: the broker that copies.
        leader_id: whom from.
        cluster: theirs; its faults lie between them.
    """

    def __init__(self, follower: Peer, leader_id: int, cluster: ClusterMetadata) -> None:
        self._follower = follower
        self._leader_id = leader_id
        self._cluster = cluster
        self._wake = asyncio.Event()
        self._fetching = FollowerFetching(follower.manager, leader_id)
        self._retry: asyncio.TimerHandle | None = None
        self._session_with: ReplicaManager | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._task = asyncio.get_running_loop().create_task(
            self._work(), name=f"ReplicaFetcher-{follower.broker_id}-{leader_id}"
        )

    def wake(self, topic_partition: TopicPartition | None = None) -> None:
        """Look at once who leads, and whether to follow a partition, and wait for nothing more."""
        if topic_partition is not None:
            self._fetching.look_at(topic_partition)
        self._wake.set()
        self._end_wait()

    def _end_wait(self, _: PartitionResponses | None = None) -> None:
        """Go on, if this waits for a response."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _end_backoff(self) -> None:
        self._retry = None
        self.wake()

    async def stop(self) -> None:
        """End: the follower is gone."""
        if self._retry is not None:
            self._retry.cancel()
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _work(self) -> None:
        follower, fault, fetching = self._follower, self._cluster.fault, self._fetching
        loop, end_wait = asyncio.get_running_loop(), self._end_wait
        params = FetchParams(follower.broker_id, _MAX_WAIT_MS, min_bytes=1)
        while True:
            leader = self._cluster.live_broker(self._leader_id)
            if leader is None:
                self._session_with = None
                await self._pause(BACKOFF_MS)
                continue
            if fault.active:
                await fault.pass_fetch(follower.broker_id, self._leader_id)
            anew = self._session_with is not leader.manager
            if anew:
                fetching.start_anew()
            asked = fetching.next_fetches()
            if not fetching.asked:
                await self._pause(BACKOFF_MS if fetching.backs_off else None)
                continue
            self._session_with = leader.manager
            try:
                answers = leader.manager.fetch_in_session(params, asked, end_wait, anew)
            except PurgatoryClosedError:
                self._session_with = None
                await self._pause(BACKOFF_MS)
                continue
            if answers is None:
                # A leader that dies wakes nobody: whoever tells of its death does (`wake`).
                self._waiting = loop.create_future()
                await self._waiting
                continue
            if not answers:
                await asyncio.sleep(0)  # else it would come round without end
                continue
            if fault.active or self._cluster.config.follower_lag_ms:
                await fault.pass_response(follower.broker_id, self._leader_id)
            fetching.take(answers)
            if self._cluster.journeys is not None:
                self._cluster.journeys.copied(follower.manager, answers.keys())
            if fetching.backs_off and self._retry is None:
                # It goes on with the others, and looks at these again when the backoff is over.
                self._retry = loop.call_later(BACKOFF_MS / 1_000, self._end_backoff)

    async def _pause(self, milliseconds: int | None) -> None:
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if milliseconds is None else milliseconds / 1_000):
                await self._wake.wait()
