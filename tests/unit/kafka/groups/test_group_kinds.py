"""Groups keep their kind while they have members, as with Kafka's migration policy `disabled`."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.kafka import (
    OFFSETS_TOPIC,
    ErrorCode,
    GroupConfig,
    GroupManager,
    JoinGroupRequest,
    JoinGroupResult,
    TopicPartition,
)
from purgatory.kafka.groups.consumer_group_coordinator import (
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResult,
)
from purgatory.kafka.groups.group import subscribed_topics
from purgatory.kafka.topic_partition import NO_PARTITIONS
from tests.unit.kafka.conftest import Broker
from tests.unit.kafka.groups.consumer_group_client import FakeTopics
from tests.unit.kafka.groups.group_client import Asked, TagCodec, code_of, leave

PLACE = TopicPartition(OFFSETS_TOPIC, 0)
REBALANCE_MS, SESSION_MS = 5_000, 10_000
NONE = ErrorCode.NONE


def subscription(*topics: str) -> bytes:
    """Return a subscription of the classic consumer protocol, in version 0."""
    names = [struct.pack(">h", len(topic)) + topic.encode() for topic in topics]
    return struct.pack(">hi", 0, len(topics)) + b"".join(names) + struct.pack(">i", -1)


class Coordinator:
    """A broker that coordinates one group of a topic with four partitions."""

    def __init__(self, broker: Broker, delay_ms: int = 0) -> None:
        self.broker = broker
        self.topics = FakeTopics()
        self.topics.set("t", 4)
        self.numbers = iter(range(1, 1_000))
        self.config = GroupConfig(initial_rebalance_delay_ms=delay_ms)
        self.begin()
        self.lead(1)

    def begin(self) -> None:
        self.groups = GroupManager(
            self.broker.manager,
            self.config,
            TagCodec(),
            new_purgatory=lambda name: self.broker._purgatory(name, 0),
            new_member_id=lambda begin: f"{begin}-{next(self.numbers)}",
            now_ms=self.broker.clock.now_ms,
            offsets_partitions=lambda: 1,
            is_known=lambda place: True,
            known_topics=self.topics,
        )

    def lead(self, epoch: int) -> None:
        self.broker.lead(epoch, isr=(0,), replicas=(0,), tp=PLACE)
        self.groups.update_role(PLACE, leads=True)

    def join(self, member_id: str = "", kind: str = "consumer") -> Asked[JoinGroupResult]:
        """Join by the classic protocol."""
        asked = Asked[JoinGroupResult]()
        protocols = (("range", subscription("t")),)
        joined = JoinGroupRequest("c", "/h", None, SESSION_MS, REBALANCE_MS, kind, protocols)
        self.groups.classic.join("g", member_id, joined, False, asked)
        self.broker.pass_time(0)
        return asked

    def consume(self, member_id: str, epoch: int = 0) -> ErrorCode:
        """Send a heartbeat of the consumer protocol."""
        answers: list[ConsumerGroupHeartbeatResult] = []
        joins = epoch == 0
        asked = ConsumerGroupHeartbeat(
            "g",
            member_id,
            epoch,
            topic_names=("t",) if joins else None,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
            owned=NO_PARTITIONS if joins else None,
        )
        self.groups.consumer_heartbeat(asked, answers.append)
        return answers[0].error

    @property
    def kinds(self) -> list[str]:
        for group in self.groups.consumers.groups.values():
            group._check()
        known = (
            ("classic", self.groups.classic.groups),
            ("consumer", self.groups.consumers.groups),
        )
        return [kind for kind, groups in known if "g" in groups]


@pytest.mark.parametrize("kind", ["consumer", "connect"])
def test_classic_group_refuses_consumer_protocol_members(
    make_broker: Callable[..., Broker], kind: str
) -> None:
    here = Coordinator(make_broker(0))
    member_id = here.join(kind=kind).answer.member_id
    assert here.consume("m") is ErrorCode.GROUP_ID_NOT_FOUND
    assert here.kinds == ["classic"]
    leave(here.groups.classic, (member_id, None))
    assert here.consume("m") is NONE
    assert here.kinds == ["consumer"]


def test_a_consumer_group_with_members_refuses_classic_members(
    make_broker: Callable[..., Broker],
) -> None:
    here = Coordinator(make_broker(0))
    assert here.consume("m") is NONE
    assert here.join().code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert here.join("nobody").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert code_of(here.groups.classic.heartbeat, "g", 1, "m", None) is unknown
    assert leave(here.groups.classic, ("m", None)) == [unknown]
    assert here.kinds == ["consumer"]
    assert here.consume("m", -1) is NONE
    assert here.join().code is NONE
    assert here.kinds == ["classic"]


def test_pending_members_keep_their_group(
    make_broker: Callable[..., Broker],
) -> None:
    here = Coordinator(make_broker(0), delay_ms=3_000)
    assert not here.join().given
    assert here.consume("m") is ErrorCode.GROUP_ID_NOT_FOUND
    assert here.kinds == ["classic"]


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)


@given(st.lists(names, max_size=8), st.binary(max_size=40))
def test_topics_of_a_subscription_round_trip(topics: list[str], rest: bytes) -> None:
    written = [name.encode() for name in topics]
    data = struct.pack(">hi", 3, len(written))
    data += b"".join(struct.pack(">h", len(name)) + name for name in written)
    assert subscribed_topics(data + struct.pack(">i", -1) + rest) == topics


@given(st.binary(max_size=40))
def test_invalid_subscription_raises_value_error(data: bytes) -> None:
    try:
        subscribed_topics(data)
    except ValueError:
        return
