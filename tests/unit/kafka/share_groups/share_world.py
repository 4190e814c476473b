"""A broker that serves share groups on a manual clock, and a store under the test's control."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from purgatory.kafka import ErrorCode, GroupConfig, RecordBatch
from purgatory.kafka.settings.group_settings import GroupSettings, default_group_settings
from purgatory.kafka.share_groups.delayed_share_fetch import ShareFetchParams, ShareFetchResult
from purgatory.kafka.share_groups.share_partition import SharePurgatories
from purgatory.kafka.share_groups.share_partition_manager import SharePartitionManager
from purgatory.kafka.share_groups.share_session import FIRST_EPOCH, ShareSession, ShareSessionKey
from purgatory.kafka.share_groups.share_state import Acknowledgement, ShareKey, ShareState
from tests.unit.kafka.conftest import TP, Broker

TOPIC_ID = UUID(int=7)
KEY = ShareKey("g", TOPIC_ID, 0)
LOCK_MS = 1_000


class FakeStore:
    """Keeps states in memory; while ``is_held``, it sends no response."""

    def __init__(self) -> None:
        self.states: dict[ShareKey, ShareState] = {}
        self.is_held = False
        self.error = ErrorCode.NONE
        self.writes = 0
        self._held: list[Callable[[], object]] = []

    def read(self, key: ShareKey, leader_epoch: int, respond: Any) -> None:
        def read() -> None:
            state = self.states.get(key, ShareState())._replace(leader_epoch=leader_epoch)
            respond(self.error, state)

        self._do(read)

    def write(self, key: ShareKey, state: ShareState, respond: Any) -> None:
        self.writes += 1

        def write() -> None:
            if self.error is ErrorCode.NONE:
                self.states[key] = state
            respond(self.error)

        self._do(write)

    def _do(self, what: Callable[[], object]) -> None:
        if self.is_held:
            self._held.append(what)
        else:
            what()

    def complete_move(self) -> None:
        """Respond to the held requests, and from now on at once."""
        self.is_held = False
        held, self._held = self._held, []
        for what in held:
            what()


class ShareWorld:
    """The share partition `KEY`, whose partition a broker leads alone."""

    def __init__(self, broker: Broker, start: str = "earliest", **config: Any) -> None:
        self.broker = broker
        self.store = FakeStore()
        self.sessions: dict[str, ShareSession] = {}
        self.groups = replace(GroupConfig(share_record_lock_duration_ms=LOCK_MS), **config)
        self.settings = {**default_group_settings(self.groups), "share.auto.offset.reset": start}
        self.locks = broker._purgatory("AcquisitionLock", 0)
        self.names: Mapping[UUID, str] = {TOPIC_ID: TP.topic}
        self.shares = SharePartitionManager(
            broker.manager,
            self.groups,
            self.store,
            SharePurgatories(broker.share_fetches, self.locks),
            lambda _: GroupSettings(self.settings),
            self.name_of,
            lambda partition, age_ms: -1,
        )
        self.lead(1)

    def name_of(self, topic_id: UUID) -> str | None:
        return self.names.get(topic_id)

    def lead(self, epoch: int) -> None:
        self.shares.update_role(TP, epoch)
        self.broker.lead(epoch, isr=(0,), replicas=(0,))

    def follow(self, epoch: int) -> None:
        self.shares.update_role(TP, None)
        self.broker.manager.become_follower(TP, 1, epoch, (0, 1))

    def produce(self, records: int, batches: int = 1) -> None:
        for _ in range(batches):
            self.broker.produce(RecordBatch(0, records, 100 * records), acks=1)

    def join(self, member: str) -> ShareSessionKey:
        owner = ShareSessionKey("g", member)
        self.sessions[member] = self.shares.session(owner, FIRST_EPOCH, member, [KEY])
        return owner

    def fetch(self, member: str, key: ShareKey = KEY, **params: Any) -> list[ShareFetchResult]:
        """Fetch; return the list in which the answer will be."""
        if member not in self.sessions or not self.sessions[member].is_open:
            self.join(member)
        answers: list[ShareFetchResult] = []

        def respond(given: Mapping[ShareKey, ShareFetchResult]) -> None:
            answers.append(given.get(key, ShareFetchResult()))

        self.shares.fetch(self.sessions[member], [key], ShareFetchParams(**params), respond)
        return answers

    def acquired(self, member: str, **params: Any) -> list[tuple[int, int, int]]:
        """Fetch without waiting; return the acquired records: first, last, how often delivered."""
        [answer] = self.fetch(member, max_wait_ms=0, **params)
        assert answer.error is ErrorCode.NONE, answer
        return [(one.first, one.last, one.delivery_count) for one in answer.acquired]

    def say(self, member: str, first: int, last: int, *types: int) -> list[ErrorCode]:
        """Acknowledge; return the list in which the answer will be."""
        codes: list[ErrorCode] = []
        said = {KEY: [Acknowledgement(first, last, types)]}
        owner = ShareSessionKey("g", member)
        self.shares.acknowledge(owner, said, lambda given: codes.append(given[KEY][0]))
        return codes

    @property
    def kept(self) -> ShareState:
        """The stored state."""
        return self.store.states[KEY]
