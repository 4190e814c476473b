"""The coordinator of share partitions: order, replication, fencing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import pytest

from purgatory.kafka import ErrorCode, RecordBatch, TopicPartition
from purgatory.kafka.share_groups.share_coordinator import ShareCoordinator
from purgatory.kafka.share_groups.share_state import (
    SHARE_STATE_TOPIC,
    RecordState,
    ShareKey,
    ShareState,
    ShareStateEntry,
    StateBatch,
)
from tests.unit.kafka.conftest import Broker

PLACE = TopicPartition(SHARE_STATE_TOPIC, 0)
KEY = ShareKey("g", UUID(int=7), 0)
NONE = ErrorCode.NONE


class ShareTags:
    """Keeps how share partitions stand as a batch's tag."""

    def batch(self, entries: Sequence[ShareStateEntry]) -> RecordBatch:
        return RecordBatch(0, len(entries), 100 * len(entries), tag=tuple(entries))

    def entries(self, batch: RecordBatch) -> Sequence[ShareStateEntry]:
        assert isinstance(batch.tag, tuple)
        return batch.tag


class Keeping:
    """A coordinator on a broker, with requests in one line; answers come into lists."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.coordinator = ShareCoordinator(broker.manager, ShareTags(), lambda: 1)

    def lead(self, epoch: int, *isr: int) -> None:
        self.broker.lead(epoch, isr=isr, replicas=(0, 1), tp=PLACE)
        self.coordinator.update_role(PLACE, True)

    def follow(self, epoch: int) -> None:
        self.coordinator.update_role(PLACE, False)
        self.broker.manager.become_follower(PLACE, 1, epoch, (0, 1))

    def initialize(
        self, key: ShareKey = KEY, state_epoch: int = 0, start: int = -1
    ) -> list[ErrorCode]:
        codes: list[ErrorCode] = []
        self.coordinator.initialize(key, state_epoch, start, codes.append)
        return codes

    def read(
        self, leader_epoch: int = 1, key: ShareKey = KEY
    ) -> list[tuple[ErrorCode, ShareState]]:
        answers: list[tuple[ErrorCode, ShareState]] = []
        self.coordinator.read(key, leader_epoch, lambda *answer: answers.append(answer))
        return answers

    def write(self, start: int, leader_epoch: int = 1, state_epoch: int = 0) -> list[ErrorCode]:
        codes: list[ErrorCode] = []
        batches = (StateBatch(start + 1, start + 2, RecordState.ACKNOWLEDGED, 3),)
        state = ShareState(state_epoch, leader_epoch, start, batches)
        self.coordinator.write(KEY, state, codes.append)
        return codes

    def replicate(self) -> None:
        replica = self.broker.replica(PLACE)
        answer = self.broker.fetch(replica.log.end_offset, 1, max_wait_ms=0, tps=(PLACE,))
        assert answer.of(PLACE).error is NONE


@pytest.fixture
def keeping(make_broker: Callable[..., Broker]) -> Keeping:
    one = Keeping(make_broker(0))
    one.lead(1, 0)
    return one


def test_written_state_is_read_back(keeping: Keeping) -> None:
    assert keeping.read() == [(ErrorCode.INVALID_REQUEST, ShareState())], "no group has begun"
    assert keeping.initialize() == [NONE]
    assert keeping.read() == [(NONE, ShareState(0, 1))]
    assert keeping.write(5) == [NONE]
    [(code, state)] = keeping.read(2)
    assert (code, state.leader_epoch, state.start_offset) == (NONE, 2, 5)
    assert state.batches == (StateBatch(6, 7, RecordState.ACKNOWLEDGED, 3),)
    assert keeping.coordinator.group_state("g", 0) == {KEY: state}
    assert keeping.coordinator.group_state("other", 0) == {}


def test_former_leaders_and_outdated_starts_are_fenced(keeping: Keeping) -> None:
    assert keeping.write(0) == [ErrorCode.INVALID_REQUEST], "nobody has read it"
    keeping.initialize()
    keeping.read(2)
    assert keeping.write(1, leader_epoch=1) == [ErrorCode.FENCED_LEADER_EPOCH]
    assert keeping.read(1)[0][0] is ErrorCode.FENCED_LEADER_EPOCH
    codes: list[ErrorCode] = []
    assert keeping.initialize(state_epoch=1, start=9) == [NONE]
    assert keeping.initialize(state_epoch=0) == [ErrorCode.FENCED_STATE_EPOCH]
    assert keeping.write(1, leader_epoch=2) == [ErrorCode.FENCED_STATE_EPOCH]
    assert keeping.read(2) == [(NONE, ShareState(1, 2, 9))]
    assert keeping.write(10, 2, state_epoch=1) == [NONE]
    keeping.coordinator.delete(KEY, codes.append)
    assert keeping.write(11, 2, state_epoch=1) == [ErrorCode.INVALID_REQUEST]
    assert keeping.coordinator.group_state("g", 0) == {}


def test_requests_complete_in_order_once_replicated(
    make_broker: Callable[..., Broker],
) -> None:
    keeping = Keeping(make_broker(0, min_insync_replicas=2))
    keeping.lead(1, 0, 1)
    keeping.initialize()
    read, written = keeping.read(), keeping.write(4)
    later, fenced = keeping.read(3), keeping.write(5, leader_epoch=1)
    assert (read, written, later, fenced) == ([], [], [], [])
    for _ in range(4):
        keeping.replicate()
    assert [code for code, _ in read] == written == [NONE]
    assert [state.start_offset for _, state in later] == [4]
    assert fenced == [ErrorCode.FENCED_LEADER_EPOCH]


def test_next_coordinator_returns_state_once_replicated(
    make_broker: Callable[..., Broker],
) -> None:
    keeping = Keeping(make_broker(0, min_insync_replicas=2))
    keeping.lead(1, 0, 1)
    keeping.initialize()
    keeping.replicate()
    read = keeping.read()
    keeping.replicate()
    written = keeping.write(4)
    keeping.follow(2)
    assert [code for code, _ in read] == [NONE]
    assert written == [ErrorCode.NOT_COORDINATOR]
    assert keeping.read() == [(ErrorCode.NOT_COORDINATOR, ShareState())]
    assert keeping.coordinator.group_state("g", 0) is None
    keeping.lead(3, 0, 1)
    assert keeping.read(2) == [(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ShareState())]
    keeping.replicate()
    keeping.replicate()
    read = keeping.read(2)
    keeping.replicate()
    assert [(code, state.start_offset) for code, state in read] == [(NONE, 4)], "it was appended"


def test_share_partitions_of_deleted_topics_are_deleted(keeping: Keeping) -> None:
    other = ShareKey("g", UUID(int=8), 3)
    for key in (KEY, other):
        keeping.initialize(key)
    keeping.coordinator.delete_orphans(lambda topic_id: topic_id == other.topic_id)
    assert list(keeping.coordinator.group_state("g", 0) or ()) == [other]
    keeping.follow(2)
    keeping.lead(3, 0)
    assert list(keeping.coordinator.group_state("g", 0) or ()) == [other]


def test_stale_records_are_compacted_away(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("purgatory.kafka.coordinator_log._MIN_STALE_RECORDS", 20)
    keeping.initialize()
    keeping.read()
    for start in range(60):
        assert keeping.write(start) == [NONE]
    log = keeping.broker.replica(PLACE).log
    assert log.start_offset > 0
    keeping.follow(2)
    keeping.lead(3, 0)
    assert keeping.read(4)[0][1].start_offset == 59


def test_partition_of_a_share_partition_is_that_of_kafka() -> None:
    coordinator = ShareCoordinator.__new__(ShareCoordinator)
    coordinator._state_partitions = lambda: 50
    name = "g:AAAAAAAAAAAAAAAAAAAABw:0"
    assert coordinator.coordinator_partition(KEY) == coordinator.partition_of_coordinator_key(name)
