"""What a follower has asked of its leader, kept from fetch to fetch: Kafka's fetch sessions.

A follower asks once for each partition, and again only when it stands elsewhere; the leader answers
for those partitions alone of which there is something to tell. So a fetch costs what has changed,
not what there is:

    parked  ->  told      something was appended, or its leader changed
    told    ->  (gone)    the follower is answered: it asks anew, from where it stands then
    told    ->  parked    there was nothing to tell after all

A fetch stands for all partitions of the session: its follower is there, and still where it was.
That is noted when it matters, at the first append after it. And once in ``LOOK_EVERY_MS`` a fetch
looks through all of them for what nothing is told of: watermarks and starts that moved, and a
follower that may come back into the ISR.

Ground rules
------------
* One thread, that of the event loop: nothing here is locked.
* A fetch that waits is only woken, with no answers: the next one reads them.
* A session has one fetch at a time. One that is asked while another waits ends the wait of that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from purgatory.kafka.delayed_fetch import DelayedFetch, RespondFetch
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.hosted_partitions import HostedPartitions
from purgatory.kafka.log import Log
from purgatory.kafka.partition import Partition
from purgatory.kafka.requests import (
    UNKNOWN_OFFSET,
    FetchIsolation,
    FetchParams,
    PartitionFetch,
    PartitionFetchResponse,
)
from purgatory.kafka.topic_partition import TopicPartition

LOOK_EVERY_MS = 500

Fetches = dict[TopicPartition, PartitionFetch]
Answers = dict[TopicPartition, PartitionFetchResponse]


def must_ask_anew(answer: PartitionFetchResponse) -> bool:
    """Whether a follower that gets this answer has to ask for the partition anew."""
    return bool(
        answer.batches or answer.error is not ErrorCode.NONE or answer.diverging_epoch is not None
    )


class Parked(NamedTuple):
    """What is asked of a partition, and what the follower was told of it last.

    Whoever leaves the ISR is told (`tell_changed`); ``in_sync`` is looked at until it is back.
    """

    fetch: PartitionFetch
    log: Log
    high_watermark: int
    log_start_offset: int
    in_sync: bool


class FollowerSession:
    """Keeps what one follower has asked.

    Args:
        follower_id: its broker id.
    """

    __slots__ = ("_looked_ms", "_parked", "asked_ms", "follower_id", "operation", "told")

    def __init__(self, follower_id: int) -> None:
        self.follower_id = follower_id
        self.asked_ms = 0
        self.told: Fetches = {}
        self.operation: DelayedSessionFetch | None = None
        self._parked: dict[TopicPartition, Parked] = {}
        self._looked_ms = 0

    @property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """What it waits for. O(partitions)."""
        return (*self._parked, *self.told)

    def tell_appended(self, partition: Partition) -> bool:
        """Note that there may be more in a partition; say whether that is news. O(1)."""
        parked = self._parked.get(partition.topic_partition)
        if parked is None or partition.log.end_offset <= parked.fetch.fetch_offset:
            return False
        partition.note_fetch_again(self.follower_id, self.asked_ms)
        return self.tell_changed(partition.topic_partition)

    def tell_changed(self, topic_partition: TopicPartition) -> bool:
        """Note that a partition has to be looked at; say whether that is news. O(1)."""
        parked = self._parked.pop(topic_partition, None)
        if parked is None:
            return False
        self.told[topic_partition] = parked.fetch
        return True

    def begin_fetch(self, asked: Fetches, now_ms: int) -> Fetches:
        """Take up what is asked anew; return what to read. O(those), but for the looks."""
        waiting, self.operation = self.operation, None
        if waiting is not None:
            waiting.force_complete()
        self.asked_ms = now_ms
        for topic_partition in asked:
            self._parked.pop(topic_partition, None)
        told, self.told = self.told, {}
        fetches = {**told, **asked} if told and asked else told or asked
        if now_ms - self._looked_ms >= LOOK_EVERY_MS:
            self._looked_ms = now_ms
            return {**fetches, **dict(self._changed_unnoticed())}
        return fetches

    def settle(self, fetches: Fetches, answers: Answers, partitions: HostedPartitions) -> Answers:
        """Keep for later what there is nothing to tell of; return the answers to be given."""
        given: Answers = {}
        for topic_partition, fetch in fetches.items():
            answer = answers[topic_partition]
            partition = partitions.get(topic_partition)
            known = self._parked.pop(topic_partition, None)
            if partition is None or must_ask_anew(answer):
                given[topic_partition] = answer
                continue
            if known is None:
                told_watermark = UNKNOWN_OFFSET  # the next look tells it
            else:
                told_watermark = answer.high_watermark
                if (known.high_watermark, known.log_start_offset) != (
                    told_watermark,
                    answer.log_start_offset,
                ):
                    given[topic_partition] = answer
            if partition.log.end_offset > fetch.fetch_offset:
                self.told[topic_partition] = fetch  # the answer had no room for it
            elif topic_partition not in self.told:  # it was told of while it was read
                self._parked[topic_partition] = Parked(
                    fetch,
                    partition.log,
                    told_watermark,
                    answer.log_start_offset,
                    self.follower_id in partition.isr,
                )
        return given

    def _changed_unnoticed(self) -> Iterable[tuple[TopicPartition, PartitionFetch]]:
        return [
            (topic_partition, fetch)
            for topic_partition, (fetch, log, watermark, start, in_sync) in self._parked.items()
            if log.high_watermark != watermark or log.start_offset != start or not in_sync
        ]


class DelayedSessionFetch(DelayedFetch):
    """Waits until something is told to a session.

    Args:
        params: the request's; ``max_wait_ms`` is the timeout.
        partitions: what is here.
        session: of the follower that asks.
        wake: called, with no answers.
    """

    __slots__ = ("_session",)

    def __init__(
        self,
        params: FetchParams,
        partitions: HostedPartitions,
        session: FollowerSession,
        wake: RespondFetch,
    ) -> None:
        super().__init__(params, FetchIsolation.LOG_END, partitions, {}, [], wake)
        self._session = session

    @property
    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """Return what it fetches from. O(partitions)."""
        return self._session.topic_partitions

    def try_complete(self) -> bool:
        return bool(self._session.told) and self.force_complete()

    def on_complete(self) -> None:
        if self._session.operation is self:
            self._session.operation = None
        self._answered = True
        self._respond({})
