"""Thresholds complete the same operations as checks of all operations would, at the same event.

Two brokers get the same requests: one completes by thresholds, the other checks, at each event on a
partition, all operations that wait on it. After each event both have sent the same responses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from purgatory.kafka import (
    AppendOrigin,
    FetchIsolation,
    FetchParams,
    LogConfig,
    Partition,
    PartitionFetch,
    RecordBatch,
    ReplicaManager,
    TopicPartition,
    TransactionResult,
)
from tests.proofs.drawn import width
from tests.unit.kafka.conftest import TP, Answer, Broker
from timer import ManualClock

OTHER = TopicPartition("topic", 1)
TPS = (TP, OTHER)
LONG_MS = 1_000_000

partitions = st.sampled_from([(TP,), (TP,), (OTHER,), TPS])
sizes = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 60)), min_size=1, max_size=4)
mostly = st.sampled_from([True, True, True, False])


class ScanningManager(ReplicaManager):
    """Checks all operations that wait on a partition at each event."""

    def _complete_after_append(self, partition: Partition) -> None:
        self.fetch_purgatory.check_and_complete(partition.topic_partition)
        for key in partition.end_keys:
            self.fetch_purgatory.check_and_complete(key)

    def _complete_after_high_watermark(self, partition: Partition) -> None:
        self._check_all(partition.topic_partition, partition)


class AgainstAScan(RuleBasedStateMachine):
    """Broker 0 leads both partitions, or follows for a while."""

    @initialize(min_insync=st.integers(1, 2))
    def start(self, min_insync: int) -> None:
        clock = ManualClock(start_ms=1_000)
        self.clock = clock
        config = LogConfig(segment_bytes=120)
        by_thresholds, by_scan = (
            Broker(
                0, clock, manager, min_insync_replicas=min_insync, max_lag_ms=10, log_config=config
            )
            for manager in (ReplicaManager, ScanningManager)
        )
        self.brokers = (by_thresholds, by_scan)
        self.answers: list[tuple[Answer[Any], Answer[Any]]] = []
        self.epoch = 0
        self.lead(TPS)

    def both(self, act: Callable[[Broker], object]) -> None:
        for broker in self.brokers:
            act(broker)

    def log_of(self, tp: TopicPartition) -> Any:
        partition = self.brokers[0].manager.partition(tp)
        return None if partition is None else partition.log

    def answered(self, ask: Callable[[Broker, Answer[Any]], object]) -> None:
        pair: tuple[Answer[Any], Answer[Any]] = (Answer(), Answer())
        for broker, answer in zip(self.brokers, pair, strict=True):
            ask(broker, answer)
        self.answers.append(pair)

    # ---- leadership

    def lead(self, tps: tuple[TopicPartition, ...]) -> None:
        self.epoch += 1
        for tp in tps:
            for broker in self.brokers:
                assert broker.manager.become_leader(tp, self.epoch, (0, 1, 2), (0, 1, 2))

    @rule(
        change=st.sampled_from(
            [
                "lead where none leads",
                "lead where none leads",
                "lead where none leads",
                "another epoch of the same leader",
                "truncate as a follower",
                "stop",
                "delete",
                "the ISR shrinks",
            ]
        ),
        tp=st.sampled_from(TPS),
        cut=st.integers(0, 5),
        back=mostly,
    )
    def leadership_changes(self, change: str, tp: TopicPartition, cut: int, back: bool) -> None:
        partition = self.brokers[0].manager.partition(tp)
        leads = partition is not None and partition.is_leader
        if change == "lead where none leads":
            back = not leads
        elif change == "another epoch of the same leader":
            back = leads
        elif change == "truncate as a follower":
            self.epoch += 1
            self.both(lambda broker: follow_and_truncate(broker, tp, self.epoch, cut))
        elif change == "the ISR shrinks":
            self.clock.advance(11)
            self.both(lambda broker: broker.manager.maybe_shrink_isr())
        else:
            self.both(lambda broker: broker.manager.stop_replica(tp, change == "delete"))
        if back and change != "the ISR shrinks":
            self.lead((tp,))

    # ---- records

    @rule(tps=partitions, acks=st.sampled_from([1, -1, -1]), batches=sizes)
    def produce(
        self, tps: tuple[TopicPartition, ...], acks: int, batches: list[tuple[int, int]]
    ) -> None:
        entries = {tp: [RecordBatch(0, count, size) for count, size in batches] for tp in tps}
        self.answered(
            lambda broker, answer: broker.manager.append_records(
                LONG_MS, acks, entries, answer, AppendOrigin.COORDINATOR
            )
        )

    @rule(tp=st.sampled_from(TPS), producer_id=st.sampled_from([7, 8]))
    def produce_in_a_transaction(self, tp: TopicPartition, producer_id: int) -> None:
        log = self.log_of(tp)
        entry = None if log is None else log.producers.entry(producer_id)
        sequence = 0 if entry is None else entry.last_sequence + 1
        batch = RecordBatch(0, 1, 40, -1, producer_id, 0, sequence, transactional=True)
        self.answered(
            lambda broker, answer: broker.manager.append_records(LONG_MS, 1, {tp: batch}, answer)
        )

    @rule(
        tp=st.sampled_from(TPS),
        producer_id=st.sampled_from([7, 8]),
        how=st.sampled_from(TransactionResult),
    )
    def end_a_transaction(
        self, tp: TopicPartition, producer_id: int, how: TransactionResult
    ) -> None:
        marker = RecordBatch(0, 1, 30, -1, producer_id, 0, transactional=True, control=how)
        self.answered(
            lambda broker, answer: broker.manager.append_records(
                LONG_MS, 1, {tp: marker}, answer, AppendOrigin.COORDINATOR
            )
        )

    @rule(tps=partitions, back=st.integers(0, 4))
    def delete_records(self, tps: tuple[TopicPartition, ...], back: int) -> None:
        offsets = {}
        for tp in tps:
            log = self.log_of(tp)
            offsets[tp] = 0 if log is None else max(0, log.high_watermark - back)
        self.answered(
            lambda broker, answer: broker.manager.delete_records(LONG_MS, offsets, answer)
        )

    # ---- fetches

    @rule(
        tp=st.sampled_from(TPS), replica_ids=st.sampled_from([(1,), (2,), (1, 2)]), data=st.data()
    )
    def followers_fetch(
        self, tp: TopicPartition, replica_ids: tuple[int, ...], data: st.DataObject
    ) -> None:
        log = self.log_of(tp)
        if log is not None:
            offset = data.draw(
                st.integers(max(log.start_offset, log.end_offset - 4), log.end_offset)
            )
            for replica_id in replica_ids:
                self._fetch(FetchParams(replica_id, 0), {tp: PartitionFetch(offset)})

    @rule(
        tps=partitions,
        replica_id=st.sampled_from([-1, -1, 1]),
        isolation=st.sampled_from(FetchIsolation),
        min_bytes=st.sampled_from([1, 1, 40, 100, 1_000]),
        max_bytes=st.sampled_from([50, 10_000, 10_000]),
        data=st.data(),
    )
    def fetch(
        self,
        tps: tuple[TopicPartition, ...],
        replica_id: int,
        isolation: FetchIsolation,
        min_bytes: int,
        max_bytes: int,
        data: st.DataObject,
    ) -> None:
        fetches = {}
        for tp in tps:
            partition = self.brokers[0].manager.partition(tp)
            if partition is None:
                return
            seen = data.draw(st.sampled_from(self._ends_of(partition.log)))
            offset = max(0, seen - data.draw(st.sampled_from([0, 0, 0, 1])))
            its_epoch = partition.leader_epoch
            epoch = data.draw(st.sampled_from([None, None, None, its_epoch]))
            fetched = data.draw(st.sampled_from([None, its_epoch, its_epoch - 1]))
            fetches[tp] = PartitionFetch(offset, max_bytes, epoch, fetched, 0)
        params = FetchParams(replica_id, LONG_MS, min_bytes, isolation=isolation)
        self._fetch(params, fetches)

    def _ends_of(self, log: Any) -> list[int]:
        return [log.end_offset, log.high_watermark, log.last_stable_offset]

    def _fetch(self, params: FetchParams, fetches: dict[TopicPartition, PartitionFetch]) -> None:
        self.answered(lambda broker, answer: broker.manager.fetch_records(params, fetches, answer))

    # ---- invariants

    @invariant()
    def both_gave_equal_responses(self) -> None:
        waiting = []
        for pair in self.answers:
            first, second = pair
            assert first.given == second.given
            if first.given:
                assert as_data(first) == as_data(second)
            else:
                waiting.append(pair)
        self.answers = waiting
        for broker in self.brokers:
            broker.check()
        for mine, scans in zip(*(purgatories(broker) for broker in self.brokers), strict=True):
            assert mine.num_delayed == scans.num_delayed


def follow_and_truncate(broker: Broker, tp: TopicPartition, epoch: int, cut: int) -> None:
    broker.manager.become_follower(tp, 1, epoch, (0, 1, 2))
    log = broker.replica(tp).log
    log.truncate_to(max(log.start_offset, log.end_offset - cut))


def purgatories(broker: Broker) -> tuple[Any, ...]:
    return broker.produces, broker.fetches, broker.deletions


def as_data(answer: Answer[Any]) -> dict[TopicPartition, tuple[Any, ...]]:
    """An answer, with each batch by its offset."""
    return {
        tp: tuple(
            tuple(batch.base_offset for batch in value) if field == "batches" else value
            for field, value in (
                (one.name, getattr(response, one.name)) for one in fields(response)
            )
        )
        for tp, response in answer.all.items()
    }


TestAgainstAScan = pytest.mark.slow(AgainstAScan.TestCase)
TestAgainstAScan.settings = settings(
    max_examples=width(60, 150),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
