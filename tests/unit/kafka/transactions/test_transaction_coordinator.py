"""Transactions over three brokers: visibility, fencing, errors of misuse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from purgatory.kafka import (
    AppendOrigin,
    ErrorCode,
    InitProducerIdResult,
    ProducerIdentity,
    RecordBatch,
    TopicPartition,
    TransactionResult,
)
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.transactions.transaction_metadata import LAST_EPOCH, TransactionState
from tests.unit.kafka.transactions.transaction_client import ABORT, COMMIT, TransactionClient
from tests.unit.kafka.transactions.transaction_world import IDS, OFFSETS, OUT, STATE, World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.check()


@pytest.fixture
def client(world: World) -> TransactionClient:
    made = TransactionClient(world)
    assert made.init() is ErrorCode.NONE
    return made


def state_of(world: World, transactional_id: str = "t") -> TransactionState:
    return world.coordinator().describe(transactional_id).state


def test_committed_transaction_is_visible_in_all_partitions(
    world: World, client: TransactionClient
) -> None:
    assert client.transform(7) is ErrorCode.NONE
    world.run(5)
    assert [world.read_committed(tp) for tp in OUT] == [[7], [7]]
    assert world.committed_offset() == 7
    assert not world.hangs()


def test_aborted_transaction_is_visible_in_none(world: World, client: TransactionClient) -> None:
    assert client.transform(1) is ErrorCode.NONE
    assert client.transform(2, ABORT) is ErrorCode.NONE
    assert client.transform(3) is ErrorCode.NONE
    world.run(5)
    assert [world.read_committed(tp) for tp in OUT] == [[1, 3], [1, 3]]
    assert world.committed_offset() == 3


def test_open_transaction_is_invisible(world: World, client: TransactionClient) -> None:
    assert client.add(*OUT, OFFSETS) is ErrorCode.NONE
    assert client.produce(OUT[0], 1) is ErrorCode.NONE
    assert client.commit_offset(9) is ErrorCode.NONE
    world.run(5)
    assert world.read_committed(OUT[0]) == []
    assert world.committed_offset() == -1
    assert world.leader(OFFSETS).groups.offset_metadata.pending("g") == {TopicPartition("in", 0)}
    assert set(world.hangs()) == {OUT[0], OFFSETS}
    assert state_of(world) is TransactionState.ONGOING


@pytest.mark.parametrize(("how", "offset"), [(COMMIT, 9), (ABORT, 4)])
def test_offsets_stay_pending_at_the_next_group_coordinator(
    world: World, client: TransactionClient, how: TransactionResult, offset: int
) -> None:
    client.transform(4)
    client.add(OFFSETS)
    client.commit_offset(9)
    world.kill(world.leaders[OFFSETS][0])
    world.run(20)
    assert world.committed_offset() == 4
    assert world.leader(OFFSETS).groups.offset_metadata.pending("g")
    assert client.end(how) is ErrorCode.NONE
    world.run(5)
    assert world.committed_offset() == offset
    world.kill(world.leaders[OFFSETS][0])
    world.run(20)
    assert world.committed_offset() == offset


def test_end_completes_when_all_markers_are_written(
    world: World, client: TransactionClient
) -> None:
    client.add(*OUT)
    client.produce(OUT[0], 1)
    ends: list[ErrorCode] = []
    world.coordinator().end("t", client.producer, COMMIT, ends.append)
    world.run_until(lambda: state_of(world) is TransactionState.PREPARE_COMMIT)
    assert not ends, "the decision alone is no end"
    assert world.coordinator().markers.watched
    world.run_until(lambda: ends)
    assert ends == [ErrorCode.NONE]
    assert state_of(world) is TransactionState.COMPLETE_COMMIT
    for tp in OUT:
        log = world.leader(tp).broker.replica(tp).log
        assert log.read(log.end_offset - 1, 1)[0].control is COMMIT


def test_end_completes_despite_a_leader_that_is_away(
    world: World, client: TransactionClient
) -> None:
    client.add(*OUT)
    client.produce(OUT[0], 1)
    leader, epoch, isr = world.leaders[OUT[1]]
    world.leaders[OUT[1]] = -1, epoch, isr
    began_ms = world.clock.now_ms()
    assert client.end(COMMIT) is ErrorCode.NONE
    assert world.clock.now_ms() - began_ms >= world.config.marker_wait_ms
    assert state_of(world) is TransactionState.PREPARE_COMMIT
    world.leaders[OUT[1]] = leader, epoch, isr
    world.run_until(lambda: state_of(world) is TransactionState.COMPLETE_COMMIT)


def test_deleted_topic_does_not_delay_an_end(world: World, client: TransactionClient) -> None:
    client.add(*OUT)
    client.produce(OUT[0], 1)
    del world.leaders[OUT[1]]
    assert client.end(COMMIT) is ErrorCode.NONE
    assert state_of(world) is TransactionState.COMPLETE_COMMIT


# ---- two producers with one transactional id


def test_later_producer_fences_the_one_before(world: World, client: TransactionClient) -> None:
    later = TransactionClient(world)
    assert later.init() is ErrorCode.NONE
    assert later.producer == (client.producer.producer_id, client.producer.producer_epoch + 1)
    assert client.add(*OUT) is ErrorCode.PRODUCER_FENCED
    assert client.end(COMMIT) is ErrorCode.PRODUCER_FENCED
    assert client.init(client.producer) is ErrorCode.PRODUCER_FENCED
    assert later.transform(1) is ErrorCode.NONE


def test_open_transaction_of_a_zombie_is_aborted_and_fenced(
    world: World, client: TransactionClient
) -> None:
    client.add(*OUT, OFFSETS)
    client.produce(OUT[0], "zombie")
    client.commit_offset(5)
    later = TransactionClient(world)
    assert later.init() is ErrorCode.NONE
    assert later.producer.producer_epoch == 2, "one epoch to fence, one for the new producer"
    assert client.produce(OUT[0], "late") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert client.commit_offset(6) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert later.transform(1) is ErrorCode.NONE
    world.run(5)
    assert world.read_committed(OUT[0]) == [1]
    assert world.committed_offset() == 1


def test_a_producer_raises_its_own_epoch(world: World, client: TransactionClient) -> None:
    first = client.producer
    client.transform(1, ABORT)
    assert client.init(first) is ErrorCode.NONE
    assert client.producer == (first.producer_id, 1)
    # The answer was lost: it asks once more, and nothing changes.
    assert client.init(first) is ErrorCode.NONE
    assert client.producer == (first.producer_id, 1)
    assert client.transform(2) is ErrorCode.NONE


def test_exhausted_epochs_lead_to_a_new_producer_id(
    world: World, client: TransactionClient
) -> None:
    transaction = world.coordinator()._state_manager.transactions["t"]
    transaction.complete_transition(transaction.record._replace(producer_epoch=2**15 - 2))
    last = ProducerIdentity(client.producer.producer_id, 2**15 - 2)
    assert client.init(last) is ErrorCode.NONE
    assert client.producer.producer_id != last.producer_id
    assert client.producer.producer_epoch == 0
    renewed = client.producer
    assert client.init(last) is ErrorCode.NONE, "its answer may have been lost"
    assert client.producer == renewed


# ---- time


def test_transaction_is_aborted_at_its_timeout(world: World) -> None:
    client = TransactionClient(world, timeout_ms=2_000)
    client.init()
    client.add(*OUT)
    client.produce(OUT[0], 1)
    world.pass_time(1_500)
    client.add(OFFSETS)
    assert state_of(world) is TransactionState.ONGOING
    world.pass_time(1_000)
    assert state_of(world) is TransactionState.COMPLETE_ABORT
    assert world.read_committed(OUT[0]) == []
    assert not world.hangs()
    assert client.end(COMMIT) is ErrorCode.PRODUCER_FENCED
    assert client.produce(OUT[0], 2) is ErrorCode.INVALID_PRODUCER_EPOCH
    fenced = client.producer
    assert client.init(fenced) is ErrorCode.NONE
    assert client.producer == (fenced.producer_id, fenced.producer_epoch + 1)
    assert client.transform(3) is ErrorCode.NONE


def test_timed_out_transaction_is_aborted_with_new_ids(world: World) -> None:
    client = TransactionClient(world, timeout_ms=2_000, anew=True)
    client.init()
    transaction = world.coordinator()._state_manager.transactions["t"]
    transaction.complete_transition(transaction.record._replace(producer_epoch=LAST_EPOCH))
    last = client.producer = ProducerIdentity(client.producer.producer_id, LAST_EPOCH)
    assert client.produce(OUT[0], 1) is ErrorCode.NONE
    world.pass_time(3_000)
    assert client.init(last) is ErrorCode.NONE
    assert client.producer.producer_id != last.producer_id
    assert client.transform(2) is ErrorCode.NONE
    world.run(5)
    assert world.read_committed(OUT[0]) == [2]


def test_abort_is_tried_again_until_an_id_is_saved(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = TransactionClient(world, timeout_ms=2_000)
    client.init()
    transaction = world.coordinator()._state_manager.transactions["t"]
    transaction.complete_transition(transaction.record._replace(producer_epoch=LAST_EPOCH))
    client.producer = ProducerIdentity(client.producer.producer_id, LAST_EPOCH)
    client.add(*OUT)
    manager = world.coordinator()._marker_manager
    with monkeypatch.context() as patch:
        patch.setattr(manager, "_new_producer_id", _no_id)
        world.pass_time(3_000)
        assert state_of(world) is TransactionState.ONGOING
    world.pass_time(1_000)
    assert state_of(world) is TransactionState.COMPLETE_ABORT


def _no_id() -> int:
    raise ClusterError("the folder can't be written to")


def test_timeout_continues_at_the_next_coordinator(world: World) -> None:
    client = TransactionClient(world, timeout_ms=2_000)
    client.init()
    client.add(*OUT)
    client.produce(OUT[0], 1)
    world.pass_time(1_500)
    world.kill(world.leaders[STATE][0])
    world.pass_time(800)
    assert state_of(world) is TransactionState.COMPLETE_ABORT


def test_unused_transactional_id_expires() -> None:
    world = World(id_expiration_ms=1_000)
    client = TransactionClient(world)
    client.init()
    client.transform(1)
    world.pass_time(1_500)
    assert world.coordinator().all_transactions() == []
    assert client.add(*OUT) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    world.kill(world.leaders[STATE][0])
    world.run(20)
    assert world.coordinator().all_transactions() == []
    first = client.producer.producer_id
    assert client.init() is ErrorCode.NONE
    assert client.producer.producer_id != first
    world.check()


# ---- misuse


@pytest.mark.parametrize("how", [COMMIT, ABORT])
def test_end_without_a_transaction_is_refused(client: TransactionClient, how: object) -> None:
    assert client.end(how) is ErrorCode.INVALID_TXN_STATE  # type: ignore[arg-type]


def test_an_end_can_be_repeated_but_not_changed(client: TransactionClient) -> None:
    client.transform(1)
    assert client.end(COMMIT) is ErrorCode.NONE
    assert client.end(ABORT) is ErrorCode.INVALID_TXN_STATE


def test_unknown_producers_are_refused(world: World, client: TransactionClient) -> None:
    stranger = TransactionClient(world, "unknown")
    stranger.producer = client.producer
    assert stranger.add(*OUT) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    stranger.transactional_id = "t"
    stranger.producer = ProducerIdentity(1, 0)
    assert stranger.add(*OUT) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stranger.init(stranger.producer) is ErrorCode.PRODUCER_FENCED
    stranger.transactional_id = ""
    assert stranger.init() is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_transaction_timeout_is_limited(world: World, timeout_ms: int) -> None:
    assert TransactionClient(world, timeout_ms=timeout_ms).init() is (
        ErrorCode.INVALID_TRANSACTION_TIMEOUT
    )


def test_unknown_partition_prevents_all_additions(world: World, client: TransactionClient) -> None:
    nowhere = TopicPartition("nowhere", 0)
    answers: list[object] = []
    world.coordinator().add_partitions("t", client.producer, [OUT[0], nowhere], answers.append)
    assert answers == [
        {
            OUT[0]: ErrorCode.OPERATION_NOT_ATTEMPTED,
            nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
    ]
    assert state_of(world) is TransactionState.EMPTY


def test_concurrent_steps_are_refused(world: World, client: TransactionClient) -> None:
    coordinator = world.coordinator()
    first: list[object] = []
    coordinator.add_partitions("t", client.producer, OUT, first.append)
    second: list[object] = []
    coordinator.end("t", client.producer, COMMIT, second.append)
    inits: list[InitProducerIdResult] = []
    coordinator.init_producer_id("t", 1_000, None, inits.append)
    assert second == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert inits == [InitProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS)]
    world.run_until(lambda: first)
    # A partition that is there already needs no record.
    again: list[object] = []
    coordinator.add_partitions("t", client.producer, OUT[:1], again.append)
    assert again == [{OUT[0]: ErrorCode.NONE}]


def test_broker_that_coordinates_nothing_is_not_coordinator(
    world: World, client: TransactionClient
) -> None:
    other = next(one for one in IDS if one != world.leaders[STATE][0])
    codes: list[ErrorCode] = []
    world.nodes[other].transactions.end("t", client.producer, COMMIT, codes.append)
    assert codes == [ErrorCode.NOT_COORDINATOR]


def test_leaders_verify_partitions_of_a_transaction(
    world: World, client: TransactionClient
) -> None:
    client.add(OUT[0])
    verify = world.coordinator().verify_partitions
    assert verify("t", client.producer, OUT) == {
        OUT[0]: ErrorCode.NONE,
        OUT[1]: ErrorCode.TRANSACTION_ABORTABLE,
    }
    assert verify("t", ProducerIdentity(client.producer.producer_id, 9), OUT[:1]) == {
        OUT[0]: ErrorCode.PRODUCER_FENCED
    }


def test_former_coordinator_is_fenced(world: World, client: TransactionClient) -> None:
    client.transform(1)
    tp = OUT[0]
    manager = world.leader(tp).broker.manager
    late = RecordBatch.end_transaction(*client.producer, COMMIT, coordinator_epoch=0)
    answers: list[object] = []
    manager.append_records(
        1_000,
        1,
        {tp: late},
        lambda given: answers.append(given[tp].error),
        AppendOrigin.COORDINATOR,
    )
    assert answers == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
