"""Traces of the latest produce requests: appended, replicated, committed, responded.

They are recorded while a viewer is connected; otherwise a produce costs one check.

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

MAX_TRACES = 200
MAX_PER_WINDOW = 20
_WINDOW_US = 100_000
_UNCERTAIN = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})


@dataclass(eq=False)
class RequestTrace:
    """The stages of a produce request's records for one partition.

    Args:
        client: the client id.
        leader: the leader's replica.
        broker: the leader's id.
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
    replicated: set[int] = field(default_factory=set)
    committed: bool = False

    def add_stage(self, name: str, at_us: int, broker: int | None) -> None:
        """Record that the records reached a stage."""
        self.stages.append({"name": name, "broker": broker, "at_us": at_us})

    @property
    def is_complete(self) -> bool:
        """Whether the request is completed, and all followers have the records."""
        followers = set(self.leader.replicas) - {self.broker}
        return self.outcome != "open" and self.committed and self.replicated >= followers

    def to_json(self) -> dict[str, Any]:
        """Return the trace as the view's JSON."""
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


class RequestTraces:
    """Records traces of produce requests, and keeps the latest.

    Args:
        now_us: returns the time, in microseconds.
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.now_us = now_us
        self._latest: deque[RequestTrace] = deque(maxlen=MAX_TRACES)
        self._incomplete: dict[TopicPartition, deque[RequestTrace]] = {}
        self._window_us = 0
        self._count_in_window = 0

    def record_appended(
        self,
        manager: ReplicaManager,
        client: str | None,
        entries: Mapping[TopicPartition, Sequence[RecordBatch]],
        received_us: int,
        served_us: int,
    ) -> list[RequestTrace]:
        """Record an appended produce; a sample of them under load. O(its partitions)."""
        new: list[RequestTrace] = []
        if served_us - self._window_us > _WINDOW_US:
            self._window_us, self._count_in_window = served_us, 0
        self._count_in_window += 1
        if self._count_in_window > MAX_PER_WINDOW:
            return new
        for key, batches in entries.items():
            leader = manager.partition(key)
            if leader is None or not leader.is_leader:
                continue
            end = leader.log_end_offset
            first = max(0, end - sum(batch.record_count for batch in batches))
            request_trace = RequestTrace(client or "", leader, manager.broker_id, first, end)
            request_trace.add_stage("arrived", received_us, manager.broker_id)
            request_trace.add_stage("served", served_us, manager.broker_id)
            request_trace.add_stage("appended", self.now_us(), manager.broker_id)
            new.append(request_trace)
            self._incomplete.setdefault(key, deque(maxlen=MAX_TRACES)).append(request_trace)
        self._latest.extend(new)
        return new

    def record_replicated(self, follower: ReplicaManager, keys: Collection[TopicPartition]) -> None:
        """Record a follower's log ends. O(keys + incomplete traces of these partitions)."""
        incomplete = self._incomplete
        for key in keys:
            if key not in incomplete:
                continue
            replica = follower.partition(key)
            end = -1 if replica is None else replica.log_end_offset
            for request_trace in list(incomplete[key]):
                self._check_committed(request_trace)
                if request_trace.end <= end and follower.broker_id not in request_trace.replicated:
                    request_trace.replicated.add(follower.broker_id)
                    request_trace.add_stage("copied", self.now_us(), follower.broker_id)
                if request_trace.is_complete:
                    incomplete[key].remove(request_trace)
            if not incomplete[key]:
                del incomplete[key]

    def _check_committed(self, request_trace: RequestTrace) -> None:
        if not request_trace.committed and request_trace.leader.high_watermark >= request_trace.end:
            request_trace.committed = True
            request_trace.add_stage("committed", self.now_us(), request_trace.broker)

    def record_response(
        self,
        request_traces: Sequence[RequestTrace],
        responses: Mapping[TopicPartition, PartitionProduceResponse],
    ) -> None:
        """Record the responses of requests."""
        for request_trace in request_traces:
            self._check_committed(request_trace)
            response = responses.get(request_trace.leader.topic_partition)
            if response is None:
                continue
            if response.error is ErrorCode.NONE:
                request_trace.outcome = "ok"
                if response.base_offset >= 0:  # a duplicate has its former offset
                    request_trace.end += response.base_offset - request_trace.first
                    request_trace.first = response.base_offset
            else:
                request_trace.outcome = "unknown" if response.error in _UNCERTAIN else "fail"
                request_trace.error = response.error.name
            request_trace.add_stage("completed", self.now_us(), request_trace.broker)
            request_trace.add_stage("answered", self.now_us(), None)

    def latest(self, limit: int) -> list[dict[str, Any]]:
        """Return the latest traces, newest first."""
        return [request_trace.to_json() for request_trace in list(self._latest)[: -limit - 1 : -1]]

    def find_by_record(self, topic: str, partition: int, offset: int) -> dict[str, Any] | None:
        """Return the latest trace that has this record, or None."""
        for request_trace in reversed(self._latest):
            in_partition = request_trace.leader.topic_partition == (topic, partition)
            if in_partition and request_trace.first <= offset < request_trace.end:
                return request_trace.to_json()
        return None
