"""The coordinator of the share groups whose records a broker leads.

As that of consumer groups, but for what comes before an assignment, as in Kafka: the state of each
subscribed partition is initialized at its share coordinator, in the background of the heartbeat
that finds the partition new. Only initialized partitions are assigned, in an epoch of their own: a
member that joins a new group gets none yet, and its next heartbeat, or a later one, gets them.

Ground rules: those of `ConsumerGroupCoordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.groups.consumer_group_coordinator import (
    ConsumerGroupCoordinator,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResult,
    RespondHeartbeat,
)
from purgatory.kafka.groups.consumer_group_member import JOIN_EPOCH
from purgatory.kafka.groups.epoch_group_coordinator import WriteRecords, ignore
from purgatory.kafka.groups.share_group import ShareGroup
from purgatory.kafka.groups.subscription import KnownTopics
from purgatory.kafka.topic_partition import Partitions, TopicIdPartition

_RespondCode = Callable[[ErrorCode], object]

InitializeShare = Callable[[str, TopicIdPartition, int, _RespondCode], object]
"""Initializes the state of a group's share partition in an epoch of the group, and calls back."""


def initialize_nothing(
    group_id: str, partition: TopicIdPartition, epoch: int, respond: _RespondCode
) -> None:
    """Initialize no state: for groups whose records no one reads."""
    respond(ErrorCode.NONE)


class ShareGroupCoordinator(ConsumerGroupCoordinator):
    """Coordinates the share groups of one broker.

    Args:
        initialize: initializes the state of a share partition.
        max_size, session_timeout_ms, known_topics, heartbeats, new_member_id, write: as of
            `ConsumerGroupCoordinator`.
    """

    def __init__(
        self,
        initialize: InitializeShare,
        max_size: int,
        session_timeout_ms: Callable[[str], int],
        known_topics: KnownTopics,
        heartbeats: DelayedOperationPurgatory,
        new_member_id: Callable[[], str],
        write: WriteRecords,
    ) -> None:
        super().__init__(
            max_size,
            session_timeout_ms,
            known_topics,
            heartbeats,
            new_member_id,
            write,
            ShareGroup,
        )
        self._initialize = initialize

    def share_group(self, group_id: str) -> ShareGroup | None:
        """Return a group, or None."""
        group = self.groups.get(group_id)
        assert group is None or isinstance(group, ShareGroup)
        return group

    def heartbeat(self, request: ConsumerGroupHeartbeat, respond: RespondHeartbeat) -> None:
        """Handle a heartbeat, as for consumers; afterwards initialize the partitions that are new
        to the group."""

        def respond_and_initialize(result: ConsumerGroupHeartbeatResult) -> None:
            respond(result)
            group = self.share_group(request.group_id)
            is_member = result.error is ErrorCode.NONE and request.epoch >= JOIN_EPOCH
            if is_member and group is not None:
                self._initialize_new(group)

        super().heartbeat(request, respond_and_initialize)

    def _initialize_new(self, group: ShareGroup) -> None:
        new = group.uninitialized()
        if not new:
            return
        group.initializing |= new
        left, done = set(new), set[TopicIdPartition]()

        def initialized(partition: TopicIdPartition, code: ErrorCode) -> None:
            left.discard(partition)
            if code is ErrorCode.NONE:
                done.add(partition)
            if not left:
                group.initializing -= new
                if done and self.groups.get(group.group_id) is group:
                    group.set_initialized((group.initialized or frozenset()) | done)
                    self._save(group, ignore)

        for partition in sorted(new):
            respond = partial(initialized, partition)
            self._initialize(group.group_id, partition, group.epoch, respond)

    # Offsets that are altered or deleted.

    def add_initialized(
        self, group_id: str, partitions: Collection[TopicIdPartition], respond: _RespondCode
    ) -> None:
        """Note partitions as initialized, by a group that is made if there is none; ``respond`` is
        called once that is replicated."""
        group = self.share_group(group_id)
        if group is None:
            group = ShareGroup(group_id, self._known_topics)
            self.groups[group_id] = group
        group.set_initialized((group.initialized or frozenset()) | frozenset(partitions))
        self._save(group, respond)

    def remove_initialized(
        self, group_id: str, partitions: Partitions, respond: _RespondCode
    ) -> None:
        """Note partitions as not initialized; ``respond`` is called once that is replicated."""
        group = self.share_group(group_id)
        if group is None or group.initialized is None:
            respond(ErrorCode.NONE)
            return
        group.set_initialized(group.initialized - partitions)
        self._save(group, respond)
