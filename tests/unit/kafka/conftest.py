"""A broker on a manual clock, whose responses are collected and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import pytest

from purgatory import DelayedOperationPurgatory
from purgatory.kafka import (
    AppendOrigin,
    FetchIsolation,
    FetchParams,
    LogConfig,
    Partition,
    PartitionDeleteRecordsResponse,
    PartitionFetch,
    PartitionFetchResponse,
    PartitionProduceResponse,
    RecordBatch,
    ReplicaManager,
    TopicPartition,
)
from timer import InlineExecutor, ManualClock, SystemTimer

Response = TypeVar("Response")
TP = TopicPartition("topic", 0)
OTHER = TopicPartition("topic", 1)


class Answer(Generic[Response]):
    """Collects the response to a request, and asserts that there is only one."""

    def __init__(self) -> None:
        self._answers: list[dict[TopicPartition, Response]] = []

    def __call__(self, responses: dict[TopicPartition, Response]) -> None:
        self._answers.append(responses)
        assert len(self._answers) == 1, "a request was answered twice"

    @property
    def given(self) -> bool:
        return bool(self._answers)

    @property
    def all(self) -> dict[TopicPartition, Response]:
        assert self._answers, "not answered yet"
        return self._answers[0]

    def of(self, topic_partition: TopicPartition = TP) -> Response:
        return self.all[topic_partition]


class Broker:
    """A replica manager with its purgatories, and requests in one line."""

    def __init__(
        self,
        broker_id: int,
        clock: ManualClock,
        manager: type[ReplicaManager] = ReplicaManager,
        **settings: Any,
    ) -> None:
        self.clock = clock
        self.expected_callback_errors = 0
        self.timer = SystemTimer(f"broker-{broker_id}", clock=clock, executor=InlineExecutor())
        self.produces = self._purgatory("Produce", broker_id)
        self.fetches = self._purgatory("Fetch", broker_id)
        self.deletions = self._purgatory("DeleteRecords", broker_id)
        self.share_fetches = self._purgatory("ShareFetch", broker_id)
        self.manager = manager(
            broker_id,
            clock=clock,
            produce_purgatory=self.produces,
            fetch_purgatory=self.fetches,
            delete_records_purgatory=self.deletions,
            share_fetch_purgatory=self.share_fetches,
            **settings,
        )

    def _purgatory(self, name: str, broker_id: int) -> DelayedOperationPurgatory:
        return DelayedOperationPurgatory(
            name, timer=self.timer, broker_id=broker_id, reaper_enabled=False
        )

    def replica(self, tp: TopicPartition = TP) -> Partition:
        partition = self.manager.partition(tp)
        assert partition is not None, f"{tp} isn't here"
        return partition

    def lead(
        self,
        epoch: int = 1,
        isr: tuple[int, ...] = (0, 1, 2),
        replicas: tuple[int, ...] = (0, 1, 2),
        tp: TopicPartition = TP,
    ) -> None:
        assert self.manager.become_leader(tp, epoch, isr, replicas)

    def produce(
        self,
        *batches: RecordBatch,
        acks: int = -1,
        timeout_ms: int = 1000,
        tps: tuple[TopicPartition, ...] = (TP,),
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> Answer[PartitionProduceResponse]:
        answer: Answer[PartitionProduceResponse] = Answer()
        entries = dict.fromkeys(tps, batches or (RecordBatch(0, 1, 100),))
        self.manager.append_records(timeout_ms, acks, entries, answer, origin)
        return answer

    def fetch(
        self,
        offset: int,
        replica_id: int = -1,
        *,
        epoch: int | None = None,
        fetched_epoch: int | None = None,
        log_start: int = -1,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 10_000,
        partition_max_bytes: int = 10_000,
        isolation: FetchIsolation = FetchIsolation.HIGH_WATERMARK,
        tps: tuple[TopicPartition, ...] = (TP,),
    ) -> Answer[PartitionFetchResponse]:
        answer: Answer[PartitionFetchResponse] = Answer()
        fetch = PartitionFetch(offset, partition_max_bytes, epoch, fetched_epoch, log_start)
        self.manager.fetch_records(
            FetchParams(replica_id, max_wait_ms, min_bytes, max_bytes, isolation),
            dict.fromkeys(tps, fetch),
            answer,
        )
        return answer

    def followers_fetch(self, offset: int, *replica_ids: int, log_start: int = -1) -> None:
        """Each follower reports that it has the log up to ``offset``."""
        for replica_id in replica_ids:
            answer = self.fetch(offset, replica_id, max_wait_ms=0, log_start=log_start)
            assert answer.of().error == 0, answer.of()

    def delete_records(
        self, offset: int, timeout_ms: int = 1000, tps: tuple[TopicPartition, ...] = (TP,)
    ) -> Answer[PartitionDeleteRecordsResponse]:
        answer: Answer[PartitionDeleteRecordsResponse] = Answer()
        self.manager.delete_records(timeout_ms, dict.fromkeys(tps, offset), answer)
        return answer

    def waiting(self, purgatory: DelayedOperationPurgatory) -> Any:
        """The one operation that waits in a purgatory."""
        operations = purgatory._state.pending_operations()
        assert len(operations) == 1, operations
        return operations[0]

    def check_all_that_waits(self, tp: TopicPartition = TP) -> None:
        """Check all that waits, as after a change of leadership."""
        self.manager._check_all(tp, self.manager.partition(tp))

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        while self.timer.advance_clock(0):
            pass

    def check(self) -> None:
        self.manager._check()
        errors = 0
        for purgatory in (self.produces, self.fetches, self.deletions, self.share_fetches):
            purgatory._check()
            assert purgatory.counters.missed_wakeups == 0, purgatory.name
            errors += sum(purgatory.counters.callback_errors.values())
        assert errors == self.expected_callback_errors


def offsets(response: PartitionFetchResponse) -> list[int]:
    """The base offsets of the batches that a fetch was answered with."""
    return [batch.base_offset for batch in response.batches]


def append(leader: Broker, count: int, tp: TopicPartition = TP) -> None:
    """Append so many batches of one record and 100 bytes, with acks=1."""
    for _ in range(count):
        leader.produce(acks=1, tps=(tp,))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_ms=1_000)


@pytest.fixture
def make_broker(clock: ManualClock) -> Iterator[Callable[..., Broker]]:
    """Make brokers, which must satisfy every invariant after the test."""
    made: list[Broker] = []

    def make(broker_id: int = 0, **settings: Any) -> Broker:
        broker = Broker(broker_id, clock, **settings)
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.check()


@pytest.fixture
def leader(make_broker: Callable[..., Broker]) -> Broker:
    """Broker 0, leading the partition in epoch 1 with three replicas in sync, two required.

    Segments hold three batches of 100 bytes.
    """
    broker = make_broker(0, min_insync_replicas=2, log_config=LogConfig(segment_bytes=300))
    broker.lead()
    return broker
