"""The groups that a broker coordinates, and its responses for those and for others."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from purgatory.kafka import (
    CommittedOffset,
    ErrorCode,
    GroupState,
    JoinGroupResult,
    ProducerIdentity,
    SyncGroupResult,
    TopicPartition,
)
from purgatory.kafka.groups.group import LeaveGroupResult
from tests.unit.kafka.conftest import Broker
from tests.unit.kafka.groups.group_client import Asked, code_of, joining, leave
from tests.unit.kafka.groups.group_manager_client import (
    ORDERS,
    PLACE,
    Codes,
    Coordinating,
    consumer_heartbeat,
)


@pytest.fixture
def here(make_broker: Callable[..., Broker]) -> Coordinating:
    """A broker that leads the group's partition alone."""
    here = Coordinating(make_broker(0))
    here.lead(1, 0)
    return here


def test_broker_that_is_no_coordinator_refuses_requests(
    make_broker: Callable[..., Broker],
) -> None:
    there = Coordinating(make_broker(0))
    groups = there.groups
    assert groups.coordinator_partition("hello") == PLACE
    not_here = ErrorCode.NOT_COORDINATOR
    assert there.join().code is not_here
    assert there.sync("m", b"").code is not_here
    assert there.commit(5) == [{ORDERS: not_here}]
    assert there.delete() == [not_here]
    assert code_of(groups.classic.heartbeat, "hello", 1, "m", None) is not_here
    left = Asked[LeaveGroupResult]()
    groups.classic.leave("hello", [("m", None)], left)
    assert left.code is not_here
    assert code_of(groups.offset_metadata.committed, "hello") is not_here
    assert code_of(groups.describe, "hello") is not_here
    assert groups.all_groups() == []


def test_member_joins_syncs_sends_heartbeats_and_leaves(here: Coordinating) -> None:
    refused = here.join(require_known_member_id=True).answer
    assert refused.error is ErrorCode.MEMBER_ID_REQUIRED
    joined = here.join(refused.member_id).answer
    assert (joined.error, joined.generation, joined.leader_id) == (0, 1, refused.member_id)
    assert here.sync(joined.member_id, b"all").answer.assignment == b"all"
    assert (
        code_of(here.groups.classic.heartbeat, "hello", 1, joined.member_id, None) is ErrorCode.NONE
    )
    assert here.groups.describe("hello").state is GroupState.STABLE
    assert here.delete() == [ErrorCode.NON_EMPTY_GROUP]
    here.groups.update_role(PLACE._replace(partition=21), leads=True)
    here.groups.update_role(PLACE._replace(partition=21), leads=False)
    assert here.groups.describe("hello").state is GroupState.STABLE, "it is of partition 22"
    left = leave(here.groups.classic, (joined.member_id, None), ("nobody", None), group_id="hello")
    assert left == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert here.groups.describe("hello").state is GroupState.EMPTY
    assert here.delete() == [ErrorCode.NONE]
    assert here.groups.describe("hello").state is GroupState.DEAD


def test_member_that_joins_during_a_deletion_stays(here: Coordinating) -> None:
    left = here.join().answer.member_id
    leave(here.groups.classic, (left, None), group_id="hello")
    here.lead(2, 0, 1)  # a follower has to fetch what is written from now on
    deleted = here.delete()
    joined = here.join().answer.member_id
    here.replicate()
    assert deleted == [ErrorCode.NONE]
    assert list(here.groups.describe("hello").members) == [joined]


def test_invalid_requests_of_members_get_errors(here: Coordinating) -> None:
    assert here.join("nobody").answer == JoinGroupResult(ErrorCode.UNKNOWN_MEMBER_ID, "nobody")
    assert here.sync("nobody", b"").answer == SyncGroupResult(ErrorCode.UNKNOWN_MEMBER_ID)


def test_offsets_are_committed_with_their_time_and_returned(here: Coordinating) -> None:
    here.broker.pass_time(234)
    assert here.commit(5) == [{ORDERS: ErrorCode.NONE}]
    committed = here.groups.offset_metadata.committed("hello")
    assert committed == {ORDERS: CommittedOffset(5, -1, "", commit_ms=1_234)}
    [group] = here.groups.all_groups()
    assert (group.group_id, group.state) == ("hello", GroupState.EMPTY)


@pytest.mark.parametrize(
    ("place", "why", "code"),
    [
        (TopicPartition("none", 0), "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("orders", 1), "x" * 4_097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        (TopicPartition("orders", 1), "\N{SNOWMAN}" * 1_366, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        (TopicPartition("orders", 1), "x" * 4_096, ErrorCode.NONE),
    ],
)
def test_commit_accepts_or_refuses_each_offset_by_itself(
    here: Coordinating, place: TopicPartition, why: str, code: ErrorCode
) -> None:
    assert here.commit(5, place, why) == [{ORDERS: ErrorCode.NONE, place: code}]
    assert (place in here.groups.offset_metadata.committed("hello")) == (code is ErrorCode.NONE)


def test_commit_completes_and_is_returned_once_replicated(here: Coordinating) -> None:
    here.lead(2, 0, 1)
    answers = here.commit(5)
    assert answers == []
    assert here.groups.offset_metadata.committed("hello") == {}
    here.broker.fetch(1, replica_id=1, max_wait_ms=0, tps=(PLACE,))
    assert answers == [{ORDERS: ErrorCode.NONE}]
    assert here.groups.offset_metadata.committed("hello")[ORDERS].offset == 5


def test_unreplicated_commit_times_out_and_is_not_returned(here: Coordinating) -> None:
    here.lead(2, 0, 1)
    answers = here.commit(5)
    here.broker.pass_time(5_000)
    assert answers == [{ORDERS: ErrorCode.REQUEST_TIMED_OUT}]
    assert here.groups.offset_metadata.committed("hello") == {}


def test_resigning_coordinator_refuses_waiting_commits(here: Coordinating) -> None:
    here.lead(2, 0, 1)
    answers = here.commit(5)
    here.follow(1, 3)
    assert answers == [{ORDERS: ErrorCode.NOT_COORDINATOR}]


def test_resigning_coordinator_refuses_waiting_members(
    here: Coordinating,
) -> None:
    assert here.join().code is ErrorCode.NONE
    waiting = here.join()
    assert not waiting.given, "the other one has to join again"
    here.follow(1, 2)
    assert waiting.code is ErrorCode.NOT_COORDINATOR
    assert here.groups.all_groups() == []
    purgatories = here.groups.classic.purgatories
    assert [purgatory.num_delayed for purgatory in purgatories] == [0, 0, 0]


def test_next_coordinator_loads_all_commits(here: Coordinating) -> None:
    here.commit(5)
    here.commit(6, TopicPartition("orders", 1))
    here.follow(1, 2)
    assert code_of(here.groups.offset_metadata.committed, "hello") is ErrorCode.NOT_COORDINATOR
    here.lead(3, 0)
    committed = here.groups.offset_metadata.committed("hello")
    assert {place.partition: one.offset for place, one in committed.items()} == {0: 6, 1: 6}
    assert here.delete() == [ErrorCode.NONE]
    assert here.delete() == [ErrorCode.GROUP_ID_NOT_FOUND]
    here.follow(1, 4)
    here.lead(5, 0)
    assert here.groups.offset_metadata.committed("hello") == {}


def test_next_coordinator_returns_no_unreplicated_offset(here: Coordinating) -> None:
    here.lead(2, 0, 1)
    here.commit(5)
    here.follow(1, 3)
    here.lead(4, 0, 1)  # the other one may lack the record, and may lead next
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert code_of(here.groups.offset_metadata.committed, "hello") is loading
    assert here.join().code is ErrorCode.NONE
    here.broker.fetch(0, replica_id=1, max_wait_ms=0, tps=(PLACE,))
    assert code_of(here.groups.offset_metadata.committed, "hello") is loading
    here.broker.fetch(1, replica_id=1, max_wait_ms=0, tps=(PLACE,))
    assert here.groups.offset_metadata.committed("hello")[ORDERS].offset == 5


def test_offsets_are_readable_below_min_insync(
    make_broker: Callable[..., Broker],
) -> None:
    here = Coordinating(make_broker(0, min_insync_replicas=2))
    here.lead(1, 0, 1)
    answers = here.commit(5)
    here.broker.fetch(1, replica_id=1, max_wait_ms=0, tps=(PLACE,))
    assert answers == [{ORDERS: ErrorCode.NONE}]
    here.lead(2, 0, 1)
    here.commit(6)  # no follower fetches it: the high watermark stays at 1
    here.follow(1, 3)
    here.lead(4, 0)
    replica = here.broker.replica(PLACE)
    assert (replica.high_watermark, replica.log_end_offset) == (1, 2)
    assert here.groups.offset_metadata.committed("hello")[ORDERS].offset == 6
    assert here.commit(7) == [{ORDERS: ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    assert here.groups.offset_metadata.committed("hello")[ORDERS].offset == 6
    here.lead(5, 0, 1)  # another one is in sync again
    answers = here.commit(7)
    here.broker.fetch(3, replica_id=1, max_wait_ms=0, tps=(PLACE,))
    assert answers == [{ORDERS: ErrorCode.NONE}]


def test_deleted_topic_loses_its_offsets(here: Coordinating) -> None:
    here.commit(5)
    here.groups.delete_topic("others")
    assert here.groups.offset_metadata.committed("hello").keys() == {ORDERS}
    here.groups.delete_topic("orders")
    assert here.groups.offset_metadata.committed("hello") == {}


def test_roles_in_other_topics_are_ignored(here: Coordinating) -> None:
    here.groups.update_role(TopicPartition("orders", 22), leads=False)
    assert here.commit(5) == [{ORDERS: ErrorCode.NONE}]


def test_killed_broker_completes_no_commit(here: Coordinating) -> None:
    here.lead(2, 0, 1)
    here.broker.produces.close("leave")
    assert here.commit(5) == []
    here.broker.pass_time(60_000)


def test_last_of_concurrent_commits_holds(here: Coordinating) -> None:
    here.lead(2, 0, 1)
    answers = [here.commit(offset) for offset in range(40)]
    here.broker.fetch(40, replica_id=1, max_wait_ms=0, tps=(PLACE,))
    assert answers == [[{ORDERS: ErrorCode.NONE}]] * 40
    assert here.groups.offset_metadata.committed("hello")[ORDERS].offset == 39


# ---- consumers that assign their partitions themselves


def outside_commit(here: Coordinating, generation: int, producer: bool) -> ErrorCode:
    """Commit with a member id that its client made itself."""
    answers: list[Codes] = []
    offsets = {ORDERS: CommittedOffset(7, -1, "")}
    who = (generation, "made-by-the-client", None)
    if producer:
        identity = ProducerIdentity(1, 0)
        here.groups.offset_metadata.commit_in_transaction(
            "hello", identity, *who, offsets, answers.append
        )
    else:
        here.groups.offset_metadata.commit("hello", *who, offsets, answers.append)
    [codes] = answers
    return codes[ORDERS]


@pytest.mark.parametrize("producer", [False, True])
@pytest.mark.parametrize("group", ["none", "offsets", "classic", "consumer"])
def test_empty_group_accepts_commits_of_clients_outside(
    here: Coordinating, group: str, producer: bool
) -> None:
    match group:
        case "offsets":
            here.commit(3)
        case "classic":
            member_id = here.join().answer.member_id
            leave(here.groups.classic, (member_id, None), group_id="hello")
        case "consumer":
            consumer_heartbeat(here, 0)
            consumer_heartbeat(here, -1)
    assert outside_commit(here, -1, producer) is ErrorCode.NONE
    in_generation = outside_commit(here, 3, producer)
    assert in_generation is ErrorCode.UNKNOWN_MEMBER_ID, "there is a group now"


@pytest.mark.parametrize("producer", [False, True])
@pytest.mark.parametrize("group", ["classic", "consumer"])
def test_group_with_members_refuses_commits_of_clients_outside(
    here: Coordinating, group: str, producer: bool
) -> None:
    if group == "classic":
        here.join()
    else:
        consumer_heartbeat(here, 0)
    assert outside_commit(here, -1, producer) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("producer", [False, True])
def test_share_group_has_no_committed_offsets(here: Coordinating, producer: bool) -> None:
    consumer_heartbeat(here, 0, "share")
    assert outside_commit(here, -1, producer) is ErrorCode.GROUP_ID_NOT_FOUND
    assert delete_offsets(here) == (ErrorCode.GROUP_ID_NOT_FOUND, {})


# ---- offsets that are deleted


def delete_offsets(here: Coordinating) -> tuple[ErrorCode, Codes]:
    answers: list[tuple[ErrorCode, Codes]] = []
    here.groups.offset_metadata.delete_offsets(
        "hello", [ORDERS], lambda code, codes: answers.append((code, codes))
    )
    [answer] = answers
    return answer


def in_version(version: int, *topics: str, rest: bytes = b"") -> bytes:
    """A subscription up to where its versions begin to differ, and a client's bytes of that
    version."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", version, len(topics)) + names + struct.pack(">i", -1) + rest


READS, OTHER = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        (in_version(0, "orders"), READS),
        (in_version(0, "others"), OTHER),
        # Version 1 has the partitions that a member owns behind it; some clients write none.
        (in_version(1, "others"), OTHER),
        (in_version(3, "others", rest=b"what another client writes"), OTHER),
        (in_version(1), OTHER),
        (b"range", READS),
        (b"", READS),
    ],
)
def test_offsets_of_unsubscribed_topics_are_deleted(
    here: Coordinating, metadata: bytes, code: ErrorCode
) -> None:
    here.commit(7)
    asked = Asked[JoinGroupResult]()
    offered = (("range", metadata), ("sticky", b"not chosen, so it is not looked at"))
    here.groups.classic.join("hello", "", joining()._replace(protocols=offered), False, asked)
    here.broker.pass_time(0)
    assert asked.answer.protocol == "range"
    assert delete_offsets(here) == (ErrorCode.NONE, {ORDERS: code})


def test_offsets_of_live_non_consumers_are_not_deleted(
    here: Coordinating,
) -> None:
    here.commit(7)
    asked = Asked[JoinGroupResult]()
    here.groups.classic.join("hello", "", joining(kind="connect"), False, asked)
    here.broker.pass_time(0)
    assert delete_offsets(here) == (ErrorCode.NON_EMPTY_GROUP, {})
    leave(here.groups.classic, (asked.answer.member_id, None), group_id="hello")
    assert delete_offsets(here) == (ErrorCode.NONE, {ORDERS: ErrorCode.NONE})
