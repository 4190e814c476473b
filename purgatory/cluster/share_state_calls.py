"""How a broker's share partitions ask the coordinators that keep how they stand.

Ground rules: those of `PeerCalls`. What can't be asked now, or would be refused now alone, is asked
again for a while: the coordinator may be moving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from purgatory.cluster.cluster_metadata import ClusterMetadata, Peer
from purgatory.cluster.peer_calls import PeerCalls
from purgatory.kafka import ErrorCode, TopicPartition
from purgatory.kafka.share_groups.share_coordinator import (
    RespondCode,
    RespondState,
    ShareCoordinator,
)
from purgatory.kafka.share_groups.share_state import SHARE_STATE_TOPIC, ShareKey, ShareState

_TRIES = 25
_PAUSE_S = 0.2
_PASSING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_Answer = tuple[ErrorCode, ShareState]
_NOBODY: _Answer = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ShareState())
_Question = Callable[[ShareCoordinator, RespondState], object]


class ShareStateCalls:
    """The coordinators of share partitions, as one broker sees them (`ShareStateStore`).

    Args:
        calls: how it asks others.
        cluster: its cluster.
        own: its own coordinator, which tells whom to ask.
    """

    def __init__(self, calls: PeerCalls, cluster: ClusterMetadata, own: ShareCoordinator) -> None:
        self._calls = calls
        self._cluster = cluster
        self._own = own

    def read(self, key: ShareKey, leader_epoch: int, respond: RespondState) -> None:
        """As `ShareCoordinator.read`."""
        self._begin(key, lambda one, told: one.read(key, leader_epoch, told), respond)

    def write(self, key: ShareKey, state: ShareState, respond: RespondCode) -> None:
        """As `ShareCoordinator.write`."""
        self._change(key, lambda one, told: one.write(key, state, told), respond)

    def set_start(self, key: ShareKey, start_offset: int, respond: RespondCode) -> None:
        """As `ShareCoordinator.set_start`."""
        self._change(key, lambda one, told: one.set_start(key, start_offset, told), respond)

    def delete(self, key: ShareKey, respond: RespondCode) -> None:
        """As `ShareCoordinator.delete`."""
        self._change(key, lambda one, told: one.delete(key, told), respond)

    async def of_group(self, group_id: str) -> Mapping[ShareKey, ShareState] | None:
        """Return what is kept of a group; None: not all coordinators can tell now."""
        found: dict[ShareKey, ShareState] = {}
        for number in range(self._cluster.share_state_partitions()):

            def ask(
                broker: Peer,
                respond: Callable[[Mapping[ShareKey, ShareState] | None], object],
                number: int = number,
            ) -> None:
                respond(broker.share_coordinator.of_group(group_id, number))

            leader = self._leader_of(TopicPartition(SHARE_STATE_TOPIC, number))
            of_partition = await self._calls.ask(leader, ask)
            if of_partition is None:
                return None
            found.update(of_partition)
        return found

    def _change(
        self,
        key: ShareKey,
        question: Callable[[ShareCoordinator, RespondCode], object],
        respond: RespondCode,
    ) -> None:
        def ask(coordinator: ShareCoordinator, told: RespondState) -> None:
            question(coordinator, lambda code: told(code, ShareState()))

        self._begin(key, ask, lambda code, _: respond(code))

    def _begin(self, key: ShareKey, question: _Question, respond: RespondState) -> None:
        self._calls.begin(self._ask(key, question, respond))

    async def _ask(self, key: ShareKey, question: _Question, respond: RespondState) -> None:
        def ask(broker: Peer, told: Callable[[_Answer], object]) -> None:
            question(broker.share_coordinator, lambda code, state: told((code, state)))

        answer = _NOBODY
        for number in range(_TRIES):
            if number:
                await asyncio.sleep(_PAUSE_S)
            leader = self._leader_of(self._own.place_of(key))
            answer = await self._calls.ask(leader, ask) or _NOBODY
            if answer[0] not in _PASSING:
                break
        respond(*answer)

    def _leader_of(self, topic_partition: TopicPartition) -> int:
        state = self._cluster.controller.state_of(topic_partition)
        return -1 if state is None else state.leader
