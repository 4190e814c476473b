"""How a broker copies what it follows: for each broker that leads, one task that fetches there.

It fetches as Kafka's followers do: its offset tells the leader how far it is, which moves the high
watermark; what it waits for waits in the leader's Fetch purgatory. It asks for a partition when it
stands elsewhere than it said before, and not for all in each fetch.

Ground rules
------------
* Everything happens on the event loop's thread.
* ``_asked`` is what the leader knows (`follower_session`), ``_changed`` what it has to be told.
* A role that changed meanwhile makes an answer stale, which the replica notices by itself.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from purgatory.core.errors import PurgatoryClosedError
from purgatory.core.fault_log import Logger
from purgatory.kafka import (
    ErrorCode,
    FetchParams,
    KafkaError,
    PartitionFetch,
    PartitionFetchResponse,
    ReplicaManager,
    TopicPartition,
)
from purgatory.kafka.follower_session import must_ask_anew

if TYPE_CHECKING:
    from purgatory.cluster.broker import Broker

_BACKOFF_S = 0.05
_MAX_WAIT_MS = 500
_PARTITION_MAX_BYTES = 1024 * 1024

_log = Logger("purgatory.cluster")

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
        self._session_with: ReplicaManager | None = None
        self._asked: Fetches = {}
        self._changed: set[TopicPartition] = set()
        self._answered: asyncio.Future[Answers] | None = None
        self._task = asyncio.get_running_loop().create_task(
            self._work(), name=f"ReplicaFetcher-{follower.broker_id}-{leader_id}"
        )

    def wake(self, topic_partition: TopicPartition | None = None) -> None:
        """Look at once who leads, and whether to follow a partition, and wait for nothing more."""
        if topic_partition is not None:
            self._changed.add(topic_partition)
        self._wake.set()
        if self._answered is not None and not self._answered.done():
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
            if leader is None:
                self._session_with = None
                await self._pause(_BACKOFF_S)
                continue
            await link.pass_fetch(follower.broker_id, self._leader_id)
            anew = self._session_with is not leader.manager
            asked = self._next_fetches(anew)
            if not self._asked:
                await self._pause(None)
                continue
            self._session_with = leader.manager
            answers = await self._fetch(leader.manager, params, asked, anew)
            if answers is None:
                self._session_with = None
                await self._pause(_BACKOFF_S)
                continue
            if not answers:
                continue
            await link.pass_answer(follower.broker_id, self._leader_id)
            if not self._take(answers):
                await self._pause(_BACKOFF_S)

    async def _fetch(
        self, manager: ReplicaManager, params: FetchParams, asked: Fetches, anew: bool
    ) -> Answers | None:
        """Ask the leader; None if it is gone."""
        answered: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        self._answered = answered

        def respond(answers: Answers) -> None:
            if not answered.done():
                answered.set_result(answers)

        try:
            manager.fetch_in_session(params, asked, respond, anew)
        except PurgatoryClosedError:
            return None
        if answered.done():
            if not answered.result():
                await asyncio.sleep(0)  # woken at once: it would come round without end
            return answered.result()
        # A leader that dies never answers: whoever tells of its death ends the wait (`wake`).
        return await answered

    def _next_fetches(self, anew: bool) -> Fetches:
        """Return what to ask of partitions that were not asked for yet, or stand elsewhere now."""
        manager = self._follower.manager
        changed, self._changed = self._changed, set()
        if anew:
            self._asked.clear()
            changed = {partition.topic_partition for partition in manager.partitions()}
        fetches: Fetches = {}
        for topic_partition in changed:
            partition = manager.partition(topic_partition)
            fetch = None
            if partition is not None and partition.leader_id == self._leader_id:
                fetch = partition.next_fetch(_PARTITION_MAX_BYTES)
            if fetch is None:
                self._asked.pop(topic_partition, None)
            else:
                fetches[topic_partition] = fetch
        self._asked.update(fetches)
        return fetches

    def _take(self, answers: Answers) -> bool:
        """Append what came; False if some of it was refused: not to be asked for at once."""
        manager = self._follower.manager
        sound = True
        for topic_partition, answer in answers.items():
            fetch = self._asked.get(topic_partition)
            if fetch is None:
                continue
            # Nothing but the watermark and the start were told else; the start may have moved here.
            if must_ask_anew(answer) or answer.log_start_offset != fetch.log_start_offset:
                self._changed.add(topic_partition)
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
