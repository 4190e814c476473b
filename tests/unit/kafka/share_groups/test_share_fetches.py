"""Share fetches that wait, locks that expire, and the persistent state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

import pytest

from purgatory.kafka import AppendOrigin, ErrorCode, KafkaError, RecordBatch, TransactionResult
from purgatory.kafka.share_groups.delayed_share_fetch import ShareFetchParams, ShareFetchResult
from purgatory.kafka.share_groups.share_session import FINAL_EPOCH, FIRST_EPOCH, ShareSessionKey
from purgatory.kafka.share_groups.share_state import Acknowledgement, ShareKey, ShareState
from tests.unit.kafka.conftest import TP, Broker
from tests.unit.kafka.share_groups.share_world import KEY, LOCK_MS, TOPIC_ID, ShareWorld

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
DONE = [ErrorCode.NONE]


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker(0)


@pytest.fixture
def world(broker: Broker) -> ShareWorld:
    return ShareWorld(broker)


def test_waiting_fetch_acquires_records_exclusively(world: ShareWorld) -> None:
    first, second = world.fetch("a"), world.fetch("b", max_wait_ms=400)
    assert (first, second) == ([], [])
    world.produce(3)
    [answer] = first
    assert [tuple(one) for one in answer.acquired] == [(0, 2, 1)]
    assert [batch.base_offset for batch in answer.batches] == [0]
    assert second == []
    world.broker.pass_time(399)
    assert second == []
    world.broker.pass_time(1)
    [nothing] = second
    assert (nothing.error, nothing.acquired) == (ErrorCode.NONE, ())


def test_expired_lock_releases_its_records_to_another_member(
    world: ShareWorld,
) -> None:
    world.produce(2)
    assert world.acquired("a") == [(0, 1, 1)]
    waiting = world.fetch("b", max_wait_ms=10 * LOCK_MS)
    world.broker.pass_time(LOCK_MS - 1)
    assert waiting == []
    world.broker.pass_time(1)
    [answer] = waiting
    assert [tuple(one) for one in answer.acquired] == [(0, 1, 2)]
    assert world.say("a", 0, 1, ACCEPT) == [ErrorCode.INVALID_RECORD_STATE]
    assert world.say("b", 0, 1, ACCEPT) == DONE


def test_record_is_archived_after_its_last_delivery(world: ShareWorld) -> None:
    world.produce(1)
    for count in range(1, 6):
        assert world.acquired("a") == [(0, 0, count)]
        world.broker.pass_time(LOCK_MS)
    assert world.acquired("a") == []
    assert world.kept.first_open_offset == 1
    assert not world.locks.watched


def test_released_records_are_redelivered_and_others_are_not(
    world: ShareWorld,
) -> None:
    world.produce(4)
    assert world.acquired("a") == [(0, 3, 1)]
    assert world.say("a", 0, 3, ACCEPT, RELEASE, REJECT, GAP) == DONE
    assert world.acquired("b") == [(1, 1, 2)]
    assert world.kept.first_open_offset == 1
    assert world.say("b", 1, 1, ACCEPT) == DONE
    assert world.kept.first_open_offset == 4
    assert not world.locks.watched, "there is nothing to expire any more"


def test_unpersisted_acknowledgement_is_reverted(
    world: ShareWorld,
) -> None:
    world.produce(2)
    world.acquired("a")
    world.store.is_held = True
    told = world.say("a", 0, 0, ACCEPT)
    assert told == []
    assert world.say("a", 0, 0, ACCEPT) == [ErrorCode.INVALID_RECORD_STATE]
    world.store.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.store.complete_move()
    assert told == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    world.store.error = ErrorCode.NONE
    assert world.say("a", 0, 1, ACCEPT) == DONE
    assert world.kept.first_open_offset == 2


def test_lock_expired_in_a_failed_write_releases_records(
    world: ShareWorld,
) -> None:
    world.produce(1)
    world.acquired("a")
    world.store.is_held = True
    told = world.say("a", 0, 0, ACCEPT)
    world.broker.pass_time(LOCK_MS)
    assert world.acquired("b") == []
    world.store.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.store.complete_move()
    assert told == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert world.acquired("b") == [(0, 0, 2)]


def test_acknowledgements_during_a_write_go_with_the_next_one(world: ShareWorld) -> None:
    world.produce(5)
    world.acquired("a")
    world.store.is_held = True
    writes = world.store.writes
    told = [world.say("a", offset, offset, ACCEPT) for offset in range(5)]
    assert world.store.writes == writes + 1
    world.store.is_held = False
    world.store.complete_move()
    assert told == [DONE] * 5
    assert world.store.writes == writes + 2
    assert world.kept.first_open_offset == 5


def test_lock_is_not_renewed_where_that_is_off(world: ShareWorld) -> None:
    world.produce(2)
    world.join("a")
    world.settings["share.renew.acknowledge.enable"] = "false"
    assert world.acquired("a") == [(0, 1, 1)]
    assert world.say("a", 1, 1, RENEW) == [ErrorCode.INVALID_RECORD_STATE]
    assert world.say("a", 1, 1, ACCEPT) == DONE


def test_limits_of_a_group_hold_from_the_next_fetch_on(world: ShareWorld) -> None:
    world.produce(1)
    world.join("a")
    world.settings["share.delivery.count.limit"] = "2"
    for delivery in (1, 2):
        assert world.acquired("a") == [(0, 0, delivery)]
        assert world.say("a", 0, 0, RELEASE) == DONE
    assert world.acquired("a") == []


def test_renewed_lock_restarts_its_duration(world: ShareWorld) -> None:
    world.produce(2)
    world.acquired("a")
    world.broker.pass_time(LOCK_MS - 1)
    assert world.say("a", 1, 1, RENEW) == DONE
    world.broker.pass_time(1)
    assert world.acquired("b") == [(0, 0, 2)]
    world.broker.pass_time(LOCK_MS - 2)
    assert world.acquired("c") == []
    world.broker.pass_time(1)
    assert world.acquired("c") == [(1, 1, 2)]


def test_ended_session_releases_records_as_delivered(world: ShareWorld) -> None:
    world.join("b")
    owner = world.join("a")
    world.produce(1)
    world.acquired("a")
    world.shares.end_session(owner)
    assert world.acquired("b") == [(0, 0, 2)]
    world.shares.connection_closed("b")
    assert len(world.shares.sessions) == 0
    assert world.acquired("b") == [(0, 0, 3)]


def test_ended_session_keeps_its_locks_while_no_state_is_written(world: ShareWorld) -> None:
    owner = world.join("a")
    world.produce(1)
    world.acquired("a")
    world.store.error = ErrorCode.INVALID_REQUEST
    assert world.say("a", 0, 0, ACCEPT) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    world.shares.end_session(owner)
    assert world.acquired("b") == []
    world.broker.pass_time(LOCK_MS)
    assert world.acquired("b") == [(0, 0, 2)]


def test_fetch_waits_for_a_partition_beside_one_with_an_error(world: ShareWorld) -> None:
    world.join("a")
    unknown = KEY._replace(topic_id=UUID(int=99))
    answers: list[Mapping[ShareKey, ShareFetchResult]] = []
    session, params = world.sessions["a"], ShareFetchParams()
    world.shares.fetch(session, [unknown, KEY], params, answers.append)
    assert answers == []
    world.produce(1)
    [answer] = answers
    assert answer[unknown].error is ErrorCode.UNKNOWN_TOPIC_ID
    assert [tuple(one) for one in answer[KEY].acquired] == [(0, 0, 1)]


def test_fetch_beyond_the_log_ends_at_once(world: ShareWorld) -> None:
    """As in Kafka, where its read of the log fails: what else it fetches is not waited for."""
    world.produce(2)
    world.store.states[KEY] = ShareState(start_offset=3)
    [answer] = world.fetch("a")
    assert answer == ShareFetchResult()
    other, keys = KEY._replace(group_id="h"), list[ShareKey]()
    world.store.is_held = True
    world.shares.fetch(world.sessions["a"], [KEY, other], ShareFetchParams(), keys.extend)
    assert keys == [KEY], "the state of the other one is being read"
    world.store.complete_move()
    world.produce(1)
    waiting = world.fetch("a")
    assert waiting == [], "its offset is that of the next record"
    world.produce(1)
    assert [tuple(one) for one in waiting[0].acquired] == [(3, 3, 1)]


def test_acknowledgement_before_the_start_is_not_persisted(world: ShareWorld) -> None:
    world.produce(3)
    assert world.acquired("a") == [(0, 2, 1)]
    assert world.say("a", 0, 1, ACCEPT) == DONE
    writes = world.store.writes
    assert world.say("a", 0, 1, RELEASE) == world.say("b", 1, 1, REJECT) == DONE
    assert world.store.writes == writes, "as in Kafka: nothing has changed"
    assert world.say("a", 0, 2, RELEASE) == DONE
    assert world.store.writes == writes + 1


def test_acknowledgement_is_unknown_where_no_state_was_read(world: ShareWorld) -> None:
    world.produce(1)
    world.store.error = ErrorCode.INVALID_REQUEST
    [answer] = world.fetch("a")
    assert answer.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.say("a", 0, 0, ACCEPT) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_acknowledgement_says_that_its_state_was_not_stored(world: ShareWorld) -> None:
    owner = world.join("a")
    world.produce(1)
    world.acquired("a")
    world.store.error = ErrorCode.FENCED_STATE_EPOCH
    given: list[tuple[ErrorCode, str | None]] = []
    said = {KEY: [Acknowledgement(0, 0, [ACCEPT])]}
    world.shares.acknowledge(owner, said, lambda codes: given.append(codes[KEY]))
    [(code, message)] = given
    assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert message == f"the state of {KEY} was not stored"


def test_forgotten_partition_keeps_its_lock(world: ShareWorld) -> None:
    owner = world.join("a")
    world.produce(1)
    world.acquired("a")
    world.shares.session(owner, 1, "a", forgotten=[KEY])
    world.shares.end_session(owner)
    assert world.acquired("b") == []
    world.broker.pass_time(LOCK_MS)
    assert world.acquired("b") == [(0, 0, 2)]


def test_records_are_delivered_alone_the_last_time(world: ShareWorld) -> None:
    world.produce(4)
    delivered = []
    for _ in range(8):
        delivered += world.acquired("a")
        world.broker.pass_time(LOCK_MS)
    together = [(0, 3, 1), (0, 3, 2), (0, 3, 3), (0, 1, 4)]
    assert delivered == [*together, (0, 0, 5), (1, 1, 5), (2, 3, 4), (2, 2, 5)]


def test_released_records_stay_in_pieces_of_batch_size(world: ShareWorld) -> None:
    world.produce(2, batches=3)
    pieces = [(0, 3, 1), (4, 5, 1)]
    assert world.acquired("a", batch_size=3) == pieces
    world.broker.pass_time(LOCK_MS)
    assert world.acquired("a") == [(first, last, 2) for first, last, _ in pieces]


def test_idle_share_partition_is_unloaded_and_read_again(
    world: ShareWorld,
) -> None:
    owner = world.join("a")
    world.produce(1)
    world.acquired("a")
    world.shares.end_session(owner)
    assert world.shares._share_partitions
    world.shares.connection_closed("a")
    assert not world.shares._share_partitions
    world.store.states[KEY] = ShareState(1, 1, 1)  # an administrator has set another offset
    world.produce(1)
    assert world.acquired("a") == [(1, 1, 1)]


def test_sessions_have_epochs_and_are_bounded(broker: Broker) -> None:
    world = ShareWorld(broker, share_max_sessions=1)
    owner, other = ShareSessionKey("g", "a"), ShareSessionKey("g", "b")

    def code_of(who: ShareSessionKey, epoch: int) -> ErrorCode:
        try:
            world.shares.session(who, epoch, "connection")
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    assert code_of(owner, 1) is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert code_of(owner, FINAL_EPOCH) is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert [code_of(owner, epoch) for epoch in (FIRST_EPOCH, 1, 2)] == [ErrorCode.NONE] * 3
    assert code_of(owner, 2) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert code_of(owner, 3) is ErrorCode.NONE
    assert code_of(other, FIRST_EPOCH) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert code_of(owner, FIRST_EPOCH) is ErrorCode.NONE
    world.shares.session(owner, FINAL_EPOCH, "connection")
    world.shares.end_session(owner)
    assert code_of(other, FIRST_EPOCH) is ErrorCode.NONE


def test_group_from_latest_misses_no_later_record(
    broker: Broker,
) -> None:
    world = ShareWorld(broker, start="latest")
    world.produce(3)
    assert world.acquired("a") == []
    world.produce(2)
    world.follow(2)
    [answer] = world.fetch("a", max_wait_ms=0)
    assert answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.lead(3)
    assert world.acquired("a") == [(3, 4, 1)]


def test_waiting_fetch_fails_at_once_when_another_broker_leads(world: ShareWorld) -> None:
    waiting = world.fetch("a", max_wait_ms=60_000)
    world.produce(0 + 1)
    waiting = world.fetch("b", max_wait_ms=60_000)
    assert waiting == []
    world.follow(2)
    assert [one.error for one in waiting] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert not world.locks.watched
    assert world.say("a", 0, 0, ACCEPT) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_fetch_of_a_disconnected_client_acquires_no_record(world: ShareWorld) -> None:
    world.fetch("b", max_wait_ms=0)
    waiting = world.fetch("a", max_wait_ms=60_000)
    world.shares.connection_closed("a")
    world.produce(1)
    assert [one.acquired for one in waiting] == [()]
    assert world.acquired("b") == [(0, 0, 1)]


def test_fetch_waits_while_the_state_is_read_and_fails_on_errors(
    world: ShareWorld,
) -> None:
    world.produce(1)
    world.store.is_held = True
    waiting = world.fetch("a")
    assert waiting == []
    world.store.complete_move()
    [answer] = waiting
    assert [tuple(one) for one in answer.acquired] == [(0, 0, 1)]
    world.names = {}
    [gone] = world.fetch("a", key=KEY._replace(topic_id=TOPIC_ID))
    assert gone.error is ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("fenced", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH])
def test_fenced_leader_reads_the_state_again(world: ShareWorld, fenced: ErrorCode) -> None:
    world.produce(2)
    world.acquired("a")
    world.store.error = fenced
    assert world.say("a", 0, 0, ACCEPT) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    world.store.error = ErrorCode.NONE
    assert world.acquired("b") == [(0, 1, 1)]


def test_max_records_is_met_by_whole_batches_or_exactly(
    world: ShareWorld,
) -> None:
    world.produce(3, batches=4)
    assert world.acquired("a", max_records=4) == [(0, 5, 1)]
    assert world.acquired("a", max_records=4, exactly=True) == [(6, 9, 1)]
    assert world.acquired("a", max_records=1, exactly=True) == [(10, 10, 1)]


def test_share_partition_acquires_up_to_its_lock_limit(broker: Broker) -> None:
    world = ShareWorld(broker, share_partition_max_record_locks=4)
    world.produce(3, batches=3)
    assert world.acquired("a") == [(0, 5, 1)]
    waiting = world.fetch("b")
    assert waiting == []
    world.say("a", 0, 2, ACCEPT)
    [answer] = waiting
    assert [tuple(one) for one in answer.acquired] == [(6, 8, 1)]


def test_deleted_records_are_skipped(world: ShareWorld) -> None:
    world.produce(3, batches=2)
    world.acquired("a", max_records=1)
    world.broker.delete_records(4)
    assert world.acquired("b") == [(4, 5, 1)]
    assert world.say("a", 0, 2, ACCEPT) == DONE, "nobody minds"


def test_read_committed_skips_markers_and_aborted_records(
    world: ShareWorld,
) -> None:
    world.settings["share.isolation.level"] = "read_committed"
    manager = world.broker.manager
    for producer_id, how in ((1, TransactionResult.ABORT), (2, TransactionResult.COMMIT)):
        batch = RecordBatch(
            0,
            2,
            100,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        world.broker.produce(batch, acks=1)
        assert world.acquired("a") == [], "it is not decided yet"
        marker = RecordBatch.end_transaction(producer_id, 0, how, coordinator_epoch=0)
        manager.append_records(0, 1, {TP: marker}, lambda _: None, AppendOrigin.COORDINATOR)
    assert world.acquired("a") == [(3, 4, 1)]
    assert world.say("a", 3, 4, ACCEPT) == DONE
    assert world.kept.first_open_offset == 6


def test_start_offset_is_saved_behind_a_marker(world: ShareWorld) -> None:
    batch = RecordBatch(
        0, 2, 100, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
    )
    world.broker.produce(batch, acks=1)
    assert world.acquired("a") == [(0, 1, 1)]
    assert world.say("a", 0, 1, ACCEPT) == DONE
    marker = RecordBatch.end_transaction(1, 0, TransactionResult.COMMIT, coordinator_epoch=0)
    world.broker.manager.append_records(
        0, 1, {TP: marker}, lambda _: None, AppendOrigin.COORDINATOR
    )
    assert world.acquired("a") == [], "no member sees it"
    assert world.kept.first_open_offset == 3


def test_invalid_acknowledgements_are_refused(world: ShareWorld) -> None:
    world.produce(5)
    world.acquired("a")
    invalid = [ErrorCode.INVALID_REQUEST]
    assert world.say("a", 0, 2, ACCEPT, ACCEPT) == invalid
    assert world.say("a", 0, 0, 5) == invalid
    assert world.say("a", 2, 1, ACCEPT) == invalid
    assert world.say("a", 0, 0) == invalid
    assert world.say("a", 4, 5, ACCEPT) == invalid
    assert world.say("b", 0, 0, ACCEPT) == [ErrorCode.INVALID_RECORD_STATE]
    assert world.say("a", 0, 4, ACCEPT) == DONE
