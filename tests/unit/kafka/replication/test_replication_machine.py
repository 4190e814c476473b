"""Three replica managers under random events, checked after each against the promise of acks=all.

The controller is here, in the test. Its commands reach the brokers late or not at all, so an old
leader keeps leading; answers to followers get lost or come late; brokers die and come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from purgatory.kafka import (
    ErrorCode,
    FetchParams,
    Log,
    LogConfig,
    Partition,
    PartitionFetch,
    PartitionFetchResponse,
    PartitionProduceResponse,
    RecordBatch,
    TopicPartition,
)
from tests.proofs.drawn import width
from tests.unit.kafka.conftest import TP, Answer, Broker
from timer import ManualClock

BROKERS = (0, 1, 2)
MAX_LAG_MS = 1_000
PRODUCER = 7

brokers = st.sampled_from(BROKERS)
# The broker of a client's request: mostly the leader, so that most requests have an effect.
LEADER = -2
targets = st.sampled_from((LEADER, LEADER, LEADER, *BROKERS))


@dataclass
class Produce:
    """A request, and the records that it appends."""

    answer: Answer[PartitionProduceResponse]
    broker_id: int
    acks: int
    batches: tuple[RecordBatch, ...]


class Replication(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(start_ms=1_000)
        self.next_tag = 0
        self.epoch = 0
        self.leader_id = -1
        self.isr: tuple[int, ...] = BROKERS
        self.alive: dict[int, Broker] = {}
        self.disks: dict[int, dict[TopicPartition, Log]] = {}
        self.commands: list[tuple[int, int]] = []  # (leader, epoch), oldest first
        self.produces: list[Produce] = []
        self.unanswered: dict[int, list[Answer[Any]]] = {broker_id: [] for broker_id in BROKERS}
        # The responses that a follower hasn't applied yet.
        self.answers: dict[int, list[tuple[PartitionFetch, PartitionFetchResponse]]]
        self.answers = {broker_id: [] for broker_id in BROKERS}
        self.acknowledged: dict[int, object] = {}
        self.committed: dict[int, tuple[object, int]] = {}
        self.deleted_below = 0
        self.watermarks: dict[int, int] = {}
        self.sequence = 0
        self.in_doubt: Produce | None = None

    @initialize(min_insync=st.integers(1, 2))
    def begin(self, min_insync: int) -> None:
        self.min_insync = min_insync
        for broker_id in BROKERS:
            self._start(broker_id)
        self._elect(0)
        for broker_id in BROKERS:
            self._tell(broker_id)

    def _start(self, broker_id: int) -> None:
        self.alive[broker_id] = Broker(
            broker_id,
            self.clock,
            min_insync_replicas=self.min_insync,
            max_lag_ms=MAX_LAG_MS,
            log_config=LogConfig(segment_bytes=300),
            logs=self.disks.pop(broker_id, None),
            on_isr_change=self._agree,
        )

    # ---- the controller

    def _agree(self, _tp: TopicPartition, leader_epoch: int, isr: tuple[int, ...]) -> bool:
        if leader_epoch != self.epoch:
            return False  # a deposed leader that doesn't know it yet
        self.isr = isr
        return True

    def _elect(self, leader_id: int) -> None:
        self.leader_id = leader_id
        self.epoch += 1
        self.commands.append((leader_id, self.epoch))

    def _tell(self, broker_id: int) -> None:
        manager = self.alive[broker_id].manager
        if broker_id == self.leader_id:
            manager.become_leader(TP, self.epoch, self.isr, BROKERS)
        else:
            manager.become_follower(TP, self.leader_id, self.epoch, BROKERS)

    @rule(broker_id=brokers)
    def elect_a_member_of_the_isr(self, broker_id: int) -> None:
        if broker_id in self.isr and broker_id in self.alive:
            self._elect(broker_id)

    @rule(broker_id=brokers)
    def broker_receives_commands(self, broker_id: int) -> None:
        if broker_id in self.alive:
            self._tell(broker_id)

    @rule()
    def all_brokers_receive_commands(self) -> None:
        for broker_id in self.alive:
            self._tell(broker_id)

    @rule(broker_id=brokers, data=st.data())
    def command_arrives_late(self, broker_id: int, data: st.DataObject) -> None:
        leader_id, epoch = data.draw(st.sampled_from(self.commands))
        broker = self.alive.get(broker_id)
        replica = None if broker is None else broker.manager.partition(TP)
        if broker is None or replica is None or epoch >= replica.leader_epoch:
            return
        if broker_id == leader_id:
            assert not broker.manager.become_leader(TP, epoch, BROKERS, BROKERS)
        else:
            assert not broker.manager.become_follower(TP, leader_id, epoch, BROKERS)

    @precondition(lambda self: len(self.alive) > 1)
    @rule(broker_id=brokers)
    def broker_dies(self, broker_id: int) -> None:
        broker = self.alive.pop(broker_id, None)
        if broker is None:
            return
        self.disks[broker_id] = broker.manager.detach_logs()
        self.unanswered[broker_id] = []  # its process is gone
        self.answers[broker_id] = []
        if broker_id == self.leader_id:
            remaining = tuple(b for b in self.isr if b in self.alive)
            if remaining:
                self.isr = remaining
            self._elect(remaining[0] if remaining else -1)

    @rule(broker_id=brokers)
    def broker_restarts(self, broker_id: int) -> None:
        if broker_id in self.alive:
            return
        self._start(broker_id)
        if self.leader_id == -1 and broker_id in self.isr:
            self._elect(broker_id)
        self._tell(broker_id)

    # ---- clients

    @rule(
        broker_id=targets,
        acks=st.sampled_from([-1, -1, 1]),
        record_counts=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    )
    def produce(self, broker_id: int, acks: int, record_counts: list[int]) -> None:
        batches = (self._batch(record_count=count) for count in record_counts)
        self._send(broker_id, acks, tuple(batches))

    @rule(broker_id=targets)
    def produce_idempotently(self, broker_id: int) -> None:
        """Return the next record, or the last one again until it is acknowledged."""
        last = self.in_doubt
        if last is not None and last.answer.given and last.answer.of().error is ErrorCode.NONE:
            self.in_doubt = last = None
            self.sequence += 1
        batches = (self._batch(self.sequence),) if last is None else last.batches
        self.in_doubt = self._send(broker_id, -1, batches) or last

    def _addressed(self, target: int) -> Broker | None:
        return self.alive.get(self.leader_id if target == LEADER else target)

    def _batch(self, sequence: int = -1, record_count: int = 1) -> RecordBatch:
        self.next_tag += 1
        if sequence < 0:
            return RecordBatch(0, record_count, 100, tag=self.next_tag)
        return RecordBatch(0, 1, 100, -1, PRODUCER, 0, sequence, tag=self.next_tag)

    def _send(self, broker_id: int, acks: int, batches: tuple[RecordBatch, ...]) -> Produce | None:
        broker = self._addressed(broker_id)
        if broker is None:
            return None
        broker_id = broker.manager.broker_id
        answer = broker.produce(*batches, acks=acks, timeout_ms=2_000)
        produce = Produce(answer, broker_id, acks, batches)
        self.produces.append(produce)
        self.unanswered[broker_id].append(answer)
        return produce

    @rule(broker_id=targets, back=st.integers(0, 4), max_wait_ms=st.sampled_from([0, 300]))
    def consume(self, broker_id: int, back: int, max_wait_ms: int) -> None:
        broker = self._addressed(broker_id)
        replica = None if broker is None else broker.manager.partition(TP)
        if broker is not None and replica is not None:
            offset = max(0, replica.high_watermark - back)
            answer = broker.fetch(offset, max_wait_ms=max_wait_ms, max_bytes=400)
            self.unanswered[broker.manager.broker_id].append(answer)
            if answer.given:
                high_watermark = answer.of().high_watermark
                assert all(b.next_offset <= high_watermark for b in answer.of().batches)

    @rule(broker_id=targets, back=st.integers(-1, 3))
    def delete_records(self, broker_id: int, back: int) -> None:
        broker = self._addressed(broker_id)
        replica = None if broker is None else broker.manager.partition(TP)
        if broker is not None and replica is not None:
            answer = broker.delete_records(replica.high_watermark - back, timeout_ms=1_500)
            self.unanswered[broker.manager.broker_id].append(answer)
            self.deleted_below = max(self.deleted_below, replica.log_start_offset)

    # ---- followers

    @rule(broker_id=brokers, max_wait_ms=st.sampled_from([0, 300]))
    def a_follower_fetches(self, broker_id: int, max_wait_ms: int) -> None:
        self._fetch(broker_id, max_wait_ms)

    @rule()
    def followers_catch_up(self) -> None:
        """The smooth way, which random single steps seldom take."""
        for _ in range(3):
            for broker_id in self.alive:
                self._fetch(broker_id, 0)
                self._take(broker_id)

    def _fetch(self, broker_id: int, max_wait_ms: int) -> None:
        broker = self.alive.get(broker_id)
        fetch = None if broker is None else broker.manager.follower_fetch(TP)
        replica = None if broker is None else broker.manager.partition(TP)
        if fetch is None or replica is None or replica.leader_id not in self.alive:
            return
        leader = self.alive[replica.leader_id]
        inbox = self.answers[broker_id]
        answer: Answer[PartitionFetchResponse] = Answer()

        def respond(responses: dict[TopicPartition, PartitionFetchResponse]) -> None:
            answer(responses)
            inbox.append((fetch, responses[TP]))

        leader.manager.fetch_records(
            FetchParams(broker_id, max_wait_ms, max_bytes=300), {TP: fetch}, respond
        )
        self.unanswered[leader.manager.broker_id].append(answer)

    @rule(stalled=brokers)
    def others_continue_without_a_broker(self, stalled: int) -> None:
        """A follower leaves the ISR and falls behind the committed records."""
        for _ in range(2):
            self._send(LEADER, -1, (self._batch(),))
            for _ in range(2):
                for broker_id in self.alive:
                    if broker_id != stalled:
                        self.a_follower_copies(broker_id)
            self.lagging_follower_leaves_the_isr(self.leader_id)

    @rule(broker_id=brokers)
    def a_follower_copies(self, broker_id: int) -> None:
        self.answers[broker_id].clear()
        self._fetch(broker_id, 0)
        self._take(broker_id)

    @rule(broker_id=brokers)
    def follower_takes_a_response(self, broker_id: int) -> None:
        self._take(broker_id)

    def _take(self, broker_id: int) -> None:
        if self.answers[broker_id] and broker_id in self.alive:
            fetch, response = self.answers[broker_id].pop(0)
            self.alive[broker_id].manager.append_as_follower(TP, fetch, response)

    @rule(broker_id=brokers)
    def response_is_lost(self, broker_id: int) -> None:
        if self.answers[broker_id]:
            self.answers[broker_id].pop(0)

    # ---- time

    @rule(ms=st.sampled_from([1, 100, 600, 2_000]))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        for broker in self.alive.values():
            broker.pass_time(0)

    @rule(broker_id=brokers)
    def lagging_follower_leaves_the_isr(self, broker_id: int) -> None:
        if broker_id in self.alive:
            self.pass_time(MAX_LAG_MS + 1)
            self.alive[broker_id].manager.maybe_shrink_isr()

    # ---- invariants

    @invariant()
    def logs_are_consistent(self) -> None:
        logs = {b: disk[TP] for b, disk in self.disks.items() if TP in disk}
        for broker_id, broker in self.alive.items():
            replica = broker.manager.partition(TP)
            if replica is not None:
                logs[broker_id] = replica.log
        self._note_acknowledged()
        for broker_id, log in logs.items():
            batches = _batches(log)
            assert log.start_offset <= self.deleted_below
            self._check_committed(broker_id, log, batches)
            numbers = [b.base_sequence for b in batches if b.producer_id == PRODUCER]
            assert numbers == sorted(set(numbers)), "a numbered record twice, or out of order"
            if broker_id in self.isr:
                self._check_acknowledged(broker_id, log, batches)

    def _note_acknowledged(self) -> None:
        waiting = []
        for produce in self.produces:
            if not produce.answer.given:
                waiting.append(produce)
            elif produce.acks == -1 and produce.answer.of().error is ErrorCode.NONE:
                offset = produce.answer.of().base_offset
                for batch in produce.batches:
                    self.acknowledged[offset] = batch.tag
                    offset += batch.record_count
        self.produces = waiting

    def _check_committed(self, broker_id: int, log: Log, batches: list[RecordBatch]) -> None:
        """All logs are equal, and stay so, up to their high watermarks."""
        for batch in batches:
            if batch.next_offset <= log.high_watermark:
                here = (batch.tag, batch.leader_epoch)
                known = self.committed.setdefault(batch.base_offset, here)
                assert known == here, (broker_id, batch.base_offset)

    def _check_acknowledged(self, broker_id: int, log: Log, batches: list[RecordBatch]) -> None:
        """Every electable replica has all records that acks=all acknowledged."""
        held = {batch.base_offset: batch.tag for batch in batches}
        for offset, tag in self.acknowledged.items():
            # A batch that the log's start cuts in two may be there whole or not at all.
            if offset >= self.deleted_below:
                assert held.get(offset) == tag, (broker_id, offset, "was acknowledged")

    @invariant()
    def high_watermarks_never_decrease(self) -> None:
        """Not on a live leader, and not on a follower that truncates or begins to lead either."""
        for broker_id, broker in self.alive.items():
            replica = broker.manager.partition(TP)
            if replica is not None:
                assert replica.high_watermark >= self.watermarks.get(broker_id, 0)
                self.watermarks[broker_id] = replica.high_watermark

    @invariant()
    def cluster_is_consistent(self) -> None:
        for broker in self.alive.values():
            broker.check()

    def teardown(self) -> None:
        self.pass_time(10_000)
        for broker_id, broker in self.alive.items():
            assert all(answer.given for answer in self.unanswered[broker_id])
            for purgatory in (broker.produces, broker.fetches, broker.deletions):
                assert purgatory.num_delayed == 0
                assert purgatory.watched == 0
        if self.leader_id in self.alive:
            self._check_that_all_agree_in_the_end()

    def _check_that_all_agree_in_the_end(self) -> None:
        self.all_brokers_receive_commands()
        leader = self.alive[self.leader_id].replica()
        self._send(LEADER, 1, (self._batch(),))  # so that the dead lag
        self._copy_until_equal(leader)
        self.lagging_follower_leaves_the_isr(self.leader_id)
        assert set(leader.isr) == set(self.alive)
        self.produce_idempotently(LEADER)
        self._copy_until_equal(leader)
        self.logs_are_consistent()
        assert self.in_doubt is not None
        enough = len(leader.isr) >= self.min_insync
        assert self.in_doubt.answer.of().error is (
            ErrorCode.NONE if enough else ErrorCode.NOT_ENOUGH_REPLICAS
        )

    def _copy_until_equal(self, leader: Partition) -> None:
        for _ in range(2 * len(leader.log.segment_bases) + 2 * len(self.commands) + 4):
            for broker_id in self.alive:
                self.a_follower_copies(broker_id)
        for broker in self.alive.values():
            assert broker.replica().log_end_offset == leader.log_end_offset


def _batches(log: Log) -> list[RecordBatch]:
    """All batches from the log's start on."""
    batches: list[RecordBatch] = []
    offset = log.start_offset
    while found := log.read(offset, 1_000_000):
        batches += found
        offset = found[-1].next_offset
    return batches


TestReplication = pytest.mark.slow(Replication.TestCase)
TestReplication.settings = settings(
    max_examples=width(60, 150),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
