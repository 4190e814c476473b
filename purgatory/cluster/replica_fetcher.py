"""The replica fetcher: for each leading broker, one task that copies from it.

The task fetches as Kafka's followers do: its fetch offset tells the leader how far it is, which
moves the high watermark; its fetches wait in the leader's Fetch purgatory.
`purgatory.kafka.replication.replica_fetcher` makes the requests of the fetch session, and handles
the responses.

Ground rules
------------
* Only the broker's loop touches it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from purgatory.cluster.metadata import ClusterMetadata, Peer
from purgatory.core.errors import PurgatoryClosedError
from purgatory.kafka import FetchParams, ReplicaManager, TopicPartition
from purgatory.kafka.replication.replica_fetcher import BACKOFF_MS, FollowerFetching
from purgatory.kafka.replication.requests import SessionFetchRequest, SessionFetchResponse

_MAX_WAIT_MS = 500


class ReplicaFetcher:
    """Copies from one leader.

    Args:
        follower: the broker that copies.
        leader_id: of the broker that it copies from.
        cluster: of both; its faults lie between them.
    """

    def __init__(self, follower: Peer, leader_id: int, cluster: ClusterMetadata) -> None:
        self._follower = follower
        self._leader_id = leader_id
        self._cluster = cluster
        self._wake = asyncio.Event()
        self._fetching = FollowerFetching(follower.manager, leader_id)
        self._params = FetchParams(follower.broker_id, _MAX_WAIT_MS, min_bytes=1)
        self._retry: asyncio.TimerHandle | None = None
        self._sent_to: ReplicaManager | None = None
        self._response: asyncio.Future[SessionFetchResponse | None]
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(
            self._work(), name=f"ReplicaFetcher-{follower.broker_id}-{leader_id}"
        )

    def wake(self, topic_partition: TopicPartition | None = None) -> None:
        """Check the leader and the followed partitions at once."""
        if topic_partition is not None:
            self._fetching.update_partition(topic_partition)
        self._wake.set()
        manager = self._sent_to
        if manager is None:
            return
        leader = self._cluster.live_broker(self._leader_id)
        if leader is not None and leader.manager is manager:
            manager.end_session_wait(self._follower.broker_id)
        elif not self._response.done():
            self._response.set_result(None)  # a dead leader sends no response

    def _end_backoff(self) -> None:
        self._retry = None
        self.wake()

    async def stop(self) -> None:
        """Stop fetching."""
        if self._retry is not None:
            self._retry.cancel()
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _work(self) -> None:
        cluster, follower, fetching = self._cluster, self._follower, self._fetching
        fault = cluster.fault
        while True:
            leader = cluster.live_broker(self._leader_id)
            if leader is None:
                await self._pause(BACKOFF_MS)
                continue
            if fault.active:
                await fault.wait_for_fetch(follower.broker_id, self._leader_id)
            request = fetching.next_request()
            if request is None:
                await self._pause(BACKOFF_MS if fetching.is_backing_off else None)
                continue
            try:
                response = await self._send(leader.manager, request)
            except PurgatoryClosedError:
                self._sent_to = response = None
                await self._pause(BACKOFF_MS)
            finally:
                self._sent_to = None
            if response is None:
                fetching.handle_error()
                continue
            if not response.partitions:
                await asyncio.sleep(0)  # else this loop might never yield
            elif fault.active or cluster.config.follower_lag_ms:
                await fault.wait_for_fetch_response(follower.broker_id, self._leader_id)
            fetching.handle_response(response)
            if cluster.request_traces is not None:
                cluster.request_traces.record_replicated(
                    follower.manager, response.partitions.keys()
                )
            if fetching.is_backing_off and self._retry is None:
                # Other partitions are fetched meanwhile; these again when the backoff is over.
                self._retry = self._loop.call_later(BACKOFF_MS / 1_000, self._end_backoff)

    def _send(
        self, leader: ReplicaManager, request: SessionFetchRequest
    ) -> asyncio.Future[SessionFetchResponse | None]:
        """Send a request; return a future of the response: None if it is lost, as the leader died.

        Raises:
            PurgatoryClosedError: it died before.
        """
        future: asyncio.Future[SessionFetchResponse | None] = self._loop.create_future()

        def respond(response: SessionFetchResponse) -> None:
            if not future.done():
                future.set_result(response)

        self._response, self._sent_to = future, leader
        leader.fetch_in_session(self._params, request, respond)
        return future

    async def _pause(self, milliseconds: int | None) -> None:
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if milliseconds is None else milliseconds / 1_000):
                await self._wake.wait()
