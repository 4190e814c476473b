"""How a broker copies what it follows: for each broker that leads, one task that fetches there.

It fetches as Kafka's followers do: its offset tells the leader how far it is, which moves the high
watermark; what it waits for waits in the leader's Fetch purgatory.

Ground rules
------------
* Everything happens on the event loop's thread.
* What is fetched is read off the follower's logs anew each time, so a role that changed meanwhile
  makes an answer stale, which the replica notices by itself.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import structlog

from purgatory.errors import PurgatoryClosedError
from purgatory.kafka import (
    ErrorCode,
    FetchParams,
    KafkaError,
    PartitionFetch,
    PartitionFetchResponse,
    ReplicaManager,
    TopicPartition,
)

if TYPE_CHECKING:
    from purgatory.broker.broker import Broker

_BACKOFF_S = 0.05
_MAX_WAIT_MS = 500
_PARTITION_MAX_BYTES = 1024 * 1024

_log = structlog.get_logger("purgatory.broker")

Fetches = dict[TopicPartition, PartitionFetch]
Answers = dict[TopicPartition, PartitionFetchResponse]


class Link(Protocol):
    """What lies between a follower and its leader; where faults are put in."""

    async def pass_fetch(self, follower: int, leader: int) -> None:
        """Return when the fetch may go to the leader."""

    async def pass_answer(self, follower: int, leader: int) -> None:
        """Return when the follower may take the answer."""


class ReplicaFetcher:
    """Copies from one leader.

    Args:
        follower: the broker that copies.
        leader_id: whom from.
        link: what lies between them.
    """

    def __init__(self, follower: Broker, leader_id: int, link: Link) -> None:
        self._follower = follower
        self._leader_id = leader_id
        self._link = link
        self._wake = asyncio.Event()
        self._refused: set[TopicPartition] = set()
        self._answered: asyncio.Future[Answers] | None = None
        self._task = asyncio.get_running_loop().create_task(
            self._work(), name=f"ReplicaFetcher-{follower.broker_id}-{leader_id}"
        )

    def wake(self) -> None:
        """Look at once which partitions there are to follow, and wait no more for the others."""
        self._wake.set()
        if self._answered is not None and not self._answered.done():
            # Nothing came. What waits at the leader notes nothing when it is answered.
            self._answered.set_result({})

    async def stop(self) -> None:
        """End: the follower is gone."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _work(self) -> None:
        follower, link = self._follower, self._link
        params = FetchParams(follower.broker_id, _MAX_WAIT_MS, min_bytes=1)
        while True:
            leader = follower.cluster.live_broker(self._leader_id)
            fetches = self._next_fetches()
            if leader is None or not fetches:
                await self._pause(None if leader is not None else _BACKOFF_S)
                continue
            await link.pass_fetch(follower.broker_id, self._leader_id)
            answers = await self._fetch(leader.manager, params, fetches)
            if answers is None:
                await self._pause(_BACKOFF_S)
                continue
            if not answers:
                continue
            await link.pass_answer(follower.broker_id, self._leader_id)
            if not self._take(fetches, answers):
                await self._pause(_BACKOFF_S)

    async def _fetch(
        self, manager: ReplicaManager, params: FetchParams, fetches: Fetches
    ) -> Answers | None:
        """Ask the leader, through the path that consumers take; None if it is gone."""
        answered: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        self._answered = answered

        def respond(answers: Answers) -> None:
            if not answered.done():
                answered.set_result(answers)

        try:
            manager.fetch_records(params, fetches, respond)
        except PurgatoryClosedError:
            return None
        # A leader that dies never answers: its purgatory is closed and lets go of what waits.
        with suppress(TimeoutError):
            # Not wait_for, which before Python 3.12 may take a cancellation for the answer.
            async with asyncio.timeout((params.max_wait_ms + 500) / 1_000):
                return await answered
        return None

    def _next_fetches(self) -> Fetches:
        manager = self._follower.manager
        fetches = {}
        for partition in manager.partitions():
            if partition.leader_id == self._leader_id:
                topic_partition = partition.topic_partition
                fetch = manager.follower_fetch(topic_partition, _PARTITION_MAX_BYTES)
                if fetch is not None:
                    fetches[topic_partition] = fetch
        return fetches

    def _take(self, fetches: Fetches, answers: Answers) -> bool:
        """Append what came; False if some of it was refused: not to be asked for at once."""
        manager = self._follower.manager
        sound = True
        for topic_partition, answer in answers.items():
            fetch = fetches[topic_partition]
            try:
                used = manager.append_as_follower(topic_partition, fetch, answer)
            except KafkaError as error:
                self._tell_refused(topic_partition, error)
                sound = False
                continue
            if used:
                self._refused.discard(topic_partition)
                self._tell_cut(topic_partition, fetch.fetch_offset)
            elif answer.error is not ErrorCode.NONE:
                sound = False
        return sound

    def _tell_refused(self, topic_partition: TopicPartition, error: KafkaError) -> None:
        """Log that what came can't be appended: once, until something of that partition can."""
        if topic_partition not in self._refused:
            self._refused.add(topic_partition)
            _log.error(
                "replica_refused",
                broker=self._follower.broker_id,
                partition=str(topic_partition),
                leader=self._leader_id,
                reason=str(error),
            )

    def _tell_cut(self, topic_partition: TopicPartition, fetch_offset: int) -> None:
        """Log what was cut off this follower's log because its leader hasn't got it."""
        partition = self._follower.manager.partition(topic_partition)
        if partition is not None and partition.log_end_offset < fetch_offset:
            _log.warning(
                "replica_cut",
                broker=self._follower.broker_id,
                partition=str(topic_partition),
                from_offset=partition.log_end_offset,
                to_offset=fetch_offset,
                leader=self._leader_id,
                leader_epoch=partition.leader_epoch,
            )

    async def _pause(self, seconds: float | None) -> None:
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
