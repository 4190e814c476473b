"""A broker that coordinates groups, on a manual clock, and requests about one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purgatory.kafka import (
    OFFSETS_TOPIC,
    CommittedOffset,
    ErrorCode,
    GroupConfig,
    GroupManager,
    JoinGroupResult,
    SyncGroupResult,
    TopicPartition,
)
from purgatory.kafka.groups.consumer_group_coordinator import (
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResult,
)
from tests.unit.kafka.conftest import Broker
from tests.unit.kafka.groups.consumer_group_client import FakeTopics
from tests.unit.kafka.groups.group_client import Asked, TagCodec, joining

PLACE = TopicPartition(OFFSETS_TOPIC, 22)  # of "hello", of 50
ORDERS = TopicPartition("orders", 0)
Codes = Mapping[TopicPartition, ErrorCode]


class Coordinating:
    """A broker with its groups, and requests of theirs in one line."""

    def __init__(self, broker: Broker, **limits: Any) -> None:
        self.broker = broker
        self.numbers = iter(range(1, 1_000))
        self.groups = GroupManager(
            broker.manager,
            GroupConfig(initial_rebalance_delay_ms=0, **limits),
            TagCodec(),
            new_purgatory=lambda name: broker._purgatory(name, 0),
            new_member_id=lambda begin: f"{begin}-{next(self.numbers)}",
            now_ms=broker.clock.now_ms,
            offsets_partitions=lambda: 50,
            is_known=lambda place: place.topic == "orders",
            known_topics=FakeTopics(),
        )

    def lead(self, epoch: int, *isr: int) -> None:
        self.broker.lead(epoch, isr=isr, replicas=(0, 1), tp=PLACE)
        self.groups.update_role(PLACE, leads=True)

    def follow(self, leader: int, epoch: int) -> None:
        self.groups.update_role(PLACE, leads=False)
        self.broker.manager.become_follower(PLACE, leader, epoch, (0, 1))

    def replicate(self) -> None:
        """Let the follower fetch all that is written."""
        end = self.broker.replica(PLACE).log_end_offset
        self.broker.fetch(end, replica_id=1, max_wait_ms=0, tps=(PLACE,))

    def commit(self, offset: int, place: TopicPartition = ORDERS, why: str = "") -> list[Codes]:
        answers: list[Codes] = []
        offsets = {ORDERS: CommittedOffset(offset, -1, ""), place: CommittedOffset(offset, -1, why)}
        self.groups.offset_metadata.commit("hello", -1, "", None, offsets, answers.append)
        return answers

    def join(
        self, member_id: str = "", require_known_member_id: bool = False
    ) -> Asked[JoinGroupResult]:
        asked = Asked[JoinGroupResult]()
        self.groups.classic.join("hello", member_id, joining(), require_known_member_id, asked)
        self.broker.pass_time(0)
        return asked

    def sync(self, member_id: str, assignment: bytes) -> Asked[SyncGroupResult]:
        asked = Asked[SyncGroupResult]()
        self.groups.classic.sync("hello", 1, member_id, None, {member_id: assignment}, asked)
        return asked

    def delete(self, group_id: str = "hello") -> list[ErrorCode]:
        codes: list[ErrorCode] = []
        self.groups.delete(group_id, codes.append)
        return codes


def consumer_heartbeat(here: Coordinating, epoch: int, kind: str = "consumer") -> None:
    """Have a member join a group of member epochs (0), or leave it (-1)."""
    beat = {"consumer": here.groups.consumer_heartbeat, "share": here.groups.share_heartbeat}[kind]
    answers: list[ConsumerGroupHeartbeatResult] = []
    asked = ConsumerGroupHeartbeat(
        "hello",
        "a-member",
        epoch,
        topic_names=("orders",),
        rebalance_timeout_ms=1_000,
        owned=frozenset(),
    )
    beat(asked, answers.append)
    [answer] = answers
    assert answer.error is ErrorCode.NONE, answer
