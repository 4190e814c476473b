"""Offsets that expire in time, and the groups that go with the last of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from purgatory.kafka import (
    CommittedOffset,
    ErrorCode,
    GroupState,
    JoinGroupResult,
    ProducerIdentity,
    TopicPartition,
    TransactionResult,
)
from purgatory.kafka.groups.group import ClassicGroupRecord
from tests.unit.kafka.conftest import Broker
from tests.unit.kafka.groups.group_client import Asked, joining, leave
from tests.unit.kafka.groups.group_manager_client import (
    ORDERS,
    PLACE,
    Coordinating,
    consumer_heartbeat,
)
from tests.unit.kafka.groups.test_group_manager import in_version

RETENTION_MS = 60_000
PAYMENTS = TopicPartition("payments", 0)
PRODUCER = ProducerIdentity(7, 0)


@pytest.fixture
def here(make_broker: Callable[..., Broker]) -> Coordinating:
    """A coordinator that keeps offsets for a minute."""
    here = Coordinating(make_broker(0), offsets_retention_ms=RETENTION_MS)
    here.lead(1, 0)
    return here


def check(here: Coordinating) -> None:
    here.groups.expire_offsets(PLACE.partition)


def state(here: Coordinating) -> GroupState:
    return here.groups.describe("hello").state


def committed(here: Coordinating) -> set[TopicPartition]:
    return set(here.groups.offset_metadata.committed("hello"))


def store(here: Coordinating, *places: TopicPartition, expire_ms: int = -1) -> None:
    """Commit offsets of any topics, whoever reads them."""
    offset = CommittedOffset(5, -1, "", expire_ms=expire_ms)
    offsets = dict.fromkeys(places, offset)
    here.groups.offsets.commit(PLACE.partition, "hello", offsets, lambda _: None)


def join(here: Coordinating, kind: str, *topics: str) -> str:
    asked = Asked[JoinGroupResult]()
    request = joining(kind=kind)._replace(protocols=(("range", in_version(0, *topics)),))
    here.groups.classic.join("hello", "", request, False, asked)
    here.broker.pass_time(0)
    return asked.answer.member_id


def take_over(here: Coordinating) -> None:
    here.follow(1, 2)
    here.lead(3, 0)


@pytest.mark.parametrize("after", [lambda here: None, take_over])
def test_offsets_without_members_expire_after_their_commit(
    here: Coordinating, after: Callable[[Coordinating], None]
) -> None:
    store(here, ORDERS)
    here.broker.pass_time(RETENTION_MS // 2)
    store(here, PAYMENTS)
    after(here)
    here.broker.pass_time(RETENTION_MS // 2 - 1)
    check(here)
    assert committed(here) == {ORDERS, PAYMENTS}
    here.broker.pass_time(1)
    check(here)
    assert (committed(here), state(here)) == ({PAYMENTS}, GroupState.EMPTY)
    here.broker.pass_time(RETENTION_MS // 2)
    check(here)
    assert (committed(here), state(here)) == (set(), GroupState.DEAD)
    assert here.groups.all_groups() == []
    assert here.groups.offsets.groups() == []


@pytest.mark.parametrize("after", [lambda here: None, take_over])
def test_offsets_of_a_left_group_expire_after_it_was_left(
    here: Coordinating, after: Callable[[Coordinating], None]
) -> None:
    member_id = join(here, "consumer", "orders")
    store(here, ORDERS)
    here.broker.pass_time(RETENTION_MS)
    leave(here.groups.classic, (member_id, None), group_id="hello")
    after(here)
    here.broker.pass_time(RETENTION_MS - 1)
    check(here)
    assert committed(here) == {ORDERS}
    here.broker.pass_time(1)
    check(here)
    assert (committed(here), state(here)) == (set(), GroupState.DEAD)


def test_age_is_that_of_the_commit_where_the_time_is_unknown(here: Coordinating) -> None:
    """A record of an older Kafka has no time since when the group is empty."""
    here.groups.classic.restore("hello", ClassicGroupRecord("consumer", 3, None, None, -1))
    store(here, ORDERS)
    here.broker.pass_time(RETENTION_MS - 1)
    check(here)
    assert committed(here) == {ORDERS}
    here.broker.pass_time(1)
    check(here)
    assert committed(here) == set()


@pytest.mark.parametrize(
    ("kind", "syncs", "kept"),
    [
        ("consumer", True, {ORDERS}),
        ("consumer", False, {ORDERS, PAYMENTS}),
        ("connect", True, {ORDERS, PAYMENTS}),
    ],
)
def test_stable_consumers_lose_offsets_of_topics_they_left(
    here: Coordinating, kind: str, syncs: bool, kept: set[TopicPartition]
) -> None:
    member_id = join(here, kind, "orders")
    if syncs:
        here.sync(member_id, b"")
    store(here, ORDERS, PAYMENTS)
    here.broker.clock.advance(RETENTION_MS)  # the session is not looked at
    check(here)
    assert committed(here) == kept
    assert state(here) is (GroupState.STABLE if syncs else GroupState.COMPLETING_REBALANCE)


@pytest.mark.parametrize("leaves", [False, True])
def test_consumer_group_keeps_offsets_it_subscribes_to(here: Coordinating, leaves: bool) -> None:
    consumer_heartbeat(here, 0)
    store(here, ORDERS, PAYMENTS)
    here.broker.clock.advance(RETENTION_MS - 1)
    if leaves:
        consumer_heartbeat(here, -1)
    check(here)
    assert committed(here) == {ORDERS, PAYMENTS}
    here.broker.clock.advance(1)
    check(here)
    assert here.groups.offsets.group_offsets("hello").keys() == (set() if leaves else {ORDERS})
    assert ("hello" in here.groups.consumers.groups) is not leaves
    take_over(here)
    assert ("hello" in here.groups.consumers.groups) is not leaves, "its records are deleted"


@pytest.mark.parametrize("kind", ["classic", "asked", "consumer", "share"])
def test_group_without_offsets_goes_once_it_is_empty(here: Coordinating, kind: str) -> None:
    groups = here.groups
    match kind:
        case "classic":
            leave(groups.classic, (join(here, "consumer"), None), group_id="hello")
        case "asked":
            refused = here.join(require_known_member_id=True).answer
        case _:
            consumer_heartbeat(here, 0, kind)
            check(here)
            assert "hello" in {**groups.consumers.groups, **groups.shares.groups}
            consumer_heartbeat(here, -1, kind)
    check(here)
    known = {**groups.classic.groups, **groups.consumers.groups, **groups.shares.groups}
    assert list(known) == groups.offsets.groups() == (["hello"] if kind == "share" else [])
    if kind == "asked":
        assert here.join(refused.member_id).code is ErrorCode.UNKNOWN_MEMBER_ID
        assert groups.classic.heartbeats.num_delayed == 0


def test_offset_expires_at_the_time_of_an_old_client(here: Coordinating) -> None:
    store(here, ORDERS, expire_ms=here.broker.clock.now_ms() + 2 * RETENTION_MS)
    here.broker.pass_time(2 * RETENTION_MS - 1)
    check(here)
    assert committed(here) == {ORDERS}
    here.broker.pass_time(1)
    check(here)
    assert committed(here) == set()


@pytest.mark.parametrize("result", TransactionResult)
def test_offset_waits_for_one_that_is_pending(
    here: Coordinating, result: TransactionResult
) -> None:
    offsets = here.groups.offsets
    store(here, ORDERS, PAYMENTS)
    pending = {ORDERS: CommittedOffset(9, -1, "")}
    offsets.commit_in_transaction(22, "hello", PRODUCER, pending, lambda _: None)
    here.broker.pass_time(RETENTION_MS)
    check(here)
    assert (committed(here), state(here)) == ({ORDERS}, GroupState.EMPTY)
    offsets.end_transaction(PLACE.partition, PRODUCER.producer_id, result)
    check(here)
    assert (committed(here), state(here)) == (set(), GroupState.DEAD)


def test_group_is_there_though_its_transaction_is_aborted(here: Coordinating) -> None:
    offsets = here.groups.offsets
    pending = {ORDERS: CommittedOffset(9, -1, "")}
    offsets.commit_in_transaction(22, "hello", PRODUCER, pending, lambda _: None)
    check(here)
    offsets.end_transaction(PLACE.partition, PRODUCER.producer_id, TransactionResult.ABORT)
    assert state(here) is GroupState.EMPTY, "as in Kafka"
    check(here)
    assert state(here) is GroupState.DEAD


def test_member_that_joins_meanwhile_is_in_a_new_group(here: Coordinating) -> None:
    leave(here.groups.classic, (join(here, "consumer"), None), group_id="hello")
    here.lead(2, 0, 1)  # a follower has to fetch what is written from now on
    check(here)
    member_id = join(here, "consumer")
    here.replicate()
    assert state(here) is GroupState.COMPLETING_REBALANCE
    assert list(here.groups.describe("hello").members) == [member_id]


def test_flood_of_group_ids_leaves_nothing(here: Coordinating) -> None:
    names = [f"hello-{number}" for number in range(1_000)]
    mine = [one for one in names if here.groups.coordinator_partition(one) == PLACE]
    for group_id in mine:
        here.groups.offset_metadata.commit(
            group_id, -1, "", None, {ORDERS: CommittedOffset(1, -1, "")}, lambda _: None
        )
    assert sorted(here.groups.offsets.groups()) == sorted(mine)
    assert mine
    here.broker.pass_time(RETENTION_MS)
    check(here)
    assert here.groups.offsets.groups(PLACE.partition) == []
    take_over(here)
    assert here.groups.all_groups() == [], "the tombstones are in the log"


def test_coordinator_that_resigned_expires_nothing(here: Coordinating) -> None:
    store(here, ORDERS)
    here.broker.pass_time(RETENTION_MS)
    here.follow(1, 2)
    check(here)
    here.lead(3, 0)
    assert committed(here) == {ORDERS}
