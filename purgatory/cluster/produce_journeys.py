"""The way of the latest produces through a cluster: appended, copied, committed, answered.

They are followed while somebody looks; otherwise a produce only checks whether that is so.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from purgatory.kafka import (
    ErrorCode,
    Partition,
    PartitionProduceResponse,
    RecordBatch,
    ReplicaManager,
    TopicPartition,
)

MOST_KEPT = 200
MOST_IN_WINDOW = 20
_WINDOW_US = 100_000
_UNCERTAIN = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})


@dataclass(eq=False)
class ProduceJourney:
    """What became of the records that a request had for one partition.

    Args:
        client: the client's id.
        leader: the partition where they were appended.
        broker: whose that is.
        first, end: the offset of the first record, and that after the last.
    """

    client: str
    leader: Partition
    broker: int
    first: int
    end: int
    outcome: str = "open"
    error: str | None = None
    stages: list[dict[str, Any]] = field(default_factory=list)
    copied: set[int] = field(default_factory=set)
    committed: bool = False

    def add_stage(self, name: str, at_us: int, broker: int | None) -> None:
        """Record that it has come to a stage."""
        self.stages.append({"name": name, "broker": broker, "at_us": at_us})

    @property
    def is_over(self) -> bool:
        """Whether no follower is awaited any more."""
        followers = set(self.leader.replicas) - {self.broker}
        return self.outcome != "open" and self.committed and self.copied >= followers

    def as_dict(self) -> dict[str, Any]:
        """Return it as the view has it."""
        key = self.leader.topic_partition
        records = f"record {self.first}"
        if self.end - self.first > 1:
            records = f"records {self.first} to {self.end - 1}"
        return {
            "title": f"{self.client or 'a client'}, {records} to {key}",
            "topic": key.topic,
            "partition": key.partition,
            "offset": self.first,
            "outcome": self.outcome,
            "error": self.error,
            "stages": list(self.stages),
        }


class ProduceJourneys:
    """Follows produces; the latest are kept.

    Args:
        now_us: returns the time, in microseconds.
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.now_us = now_us
        self._kept: deque[ProduceJourney] = deque(maxlen=MOST_KEPT)
        self._under_way: dict[TopicPartition, deque[ProduceJourney]] = {}
        self._window_us = 0
        self._begun_in_window = 0

    def appended(
        self,
        manager: ReplicaManager,
        client: str | None,
        entries: Mapping[TopicPartition, Sequence[RecordBatch]],
        came_us: int,
        served_us: int,
    ) -> list[ProduceJourney]:
        """Record a produce that was just appended; of many a second some. O(its partitions)."""
        begun: list[ProduceJourney] = []
        if served_us - self._window_us > _WINDOW_US:
            self._window_us, self._begun_in_window = served_us, 0
        self._begun_in_window += 1
        if self._begun_in_window > MOST_IN_WINDOW:
            return begun
        for key, batches in entries.items():
            leader = manager.partition(key)
            if leader is None or not leader.is_leader:
                continue
            end = leader.log_end_offset
            first = max(0, end - sum(batch.record_count for batch in batches))
            journey = ProduceJourney(client or "", leader, manager.broker_id, first, end)
            journey.add_stage("arrived", came_us, manager.broker_id)
            journey.add_stage("served", served_us, manager.broker_id)
            journey.add_stage("appended", self.now_us(), manager.broker_id)
            begun.append(journey)
            self._under_way.setdefault(key, deque(maxlen=MOST_KEPT)).append(journey)
        self._kept.extend(begun)
        return begun

    def copied(self, follower: ReplicaManager, keys: Collection[TopicPartition]) -> None:
        """Record how far a follower has come with these. O(keys + produces under way there)."""
        under_way = self._under_way
        for key in keys:
            if key not in under_way:
                continue
            replica = follower.partition(key)
            end = -1 if replica is None else replica.log_end_offset
            for journey in list(under_way[key]):
                self._check_committed(journey)
                if journey.end <= end and follower.broker_id not in journey.copied:
                    journey.copied.add(follower.broker_id)
                    journey.add_stage("copied", self.now_us(), follower.broker_id)
                if journey.is_over:
                    under_way[key].remove(journey)
            if not under_way[key]:
                del under_way[key]

    def _check_committed(self, journey: ProduceJourney) -> None:
        if not journey.committed and journey.leader.high_watermark >= journey.end:
            journey.committed = True
            journey.add_stage("committed", self.now_us(), journey.broker)

    def answered(
        self,
        journeys: Sequence[ProduceJourney],
        responses: Mapping[TopicPartition, PartitionProduceResponse],
    ) -> None:
        """Record the responses to these."""
        for journey in journeys:
            self._check_committed(journey)
            response = responses.get(journey.leader.topic_partition)
            if response is None:
                continue
            if response.error is ErrorCode.NONE:
                journey.outcome = "ok"
                if response.base_offset >= 0:  # a duplicate is where it was
                    journey.end += response.base_offset - journey.first
                    journey.first = response.base_offset
            else:
                journey.outcome = "unknown" if response.error in _UNCERTAIN else "fail"
                journey.error = response.error.name
            journey.add_stage("settled", self.now_us(), journey.broker)
            journey.add_stage("answered", self.now_us(), None)

    def latest(self, limit: int) -> list[dict[str, Any]]:
        """Return the latest, the newest first."""
        return [journey.as_dict() for journey in list(self._kept)[: -limit - 1 : -1]]

    def of_record(self, topic: str, partition: int, offset: int) -> dict[str, Any] | None:
        """Return the latest that brought this record, or None."""
        for journey in reversed(self._kept):
            here = journey.leader.topic_partition == (topic, partition)
            if here and journey.first <= offset < journey.end:
                return journey.as_dict()
        return None
