"""The coordinator of the share partitions whose state a broker keeps: Kafka's persister.

The leaders of the partitions are its clients. A leader reads once, which fences all leaders before
it, and then writes the whole state with each change.

Ground rules
------------
* One thread at a time calls it.
* Requests of one share partition are served one after the other: each finds the replicated state of
  the one before it.
* ``respond`` is called once; never, if this broker was killed just now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from purgatory.kafka.coordinator_log import CoordinatorLog
from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.groups.offsets import group_partition
from purgatory.kafka.replication.replica_manager import ReplicaManager
from purgatory.kafka.share_groups.share_state import (
    SHARE_STATE_TOPIC,
    ShareKey,
    ShareState,
    ShareStateCodec,
    ShareStateEntry,
)
from purgatory.kafka.topic_partition import TopicPartition, short_id

RespondState = Callable[[ErrorCode, ShareState], object]
"""Takes the state of a share partition, or an error."""

RespondCode = Callable[[ErrorCode], object]
_Change = Callable[[ShareState | None], ShareState | ErrorCode | None]
"""Returns the new state for the present one; None: no state; or an error, without a change."""

_NOTHING = ShareState()


class ShareCoordinator:
    """Stores the state of share partitions in the topic ``__share_group_state``.

    Args:
        manager: the replicas of that topic.
        codec: encodes and decodes its records.
        state_partitions: returns the topic's partition count, and creates the topic if needed.
    """

    def __init__(
        self,
        manager: ReplicaManager,
        codec: ShareStateCodec,
        state_partitions: Callable[[], int],
    ) -> None:
        self._codec = codec
        self._state_partitions = state_partitions
        self._records: CoordinatorLog[ShareStateEntry] = CoordinatorLog(
            SHARE_STATE_TOPIC, manager, codec, self._snapshot
        )
        self._states: dict[int, dict[ShareKey, ShareState]] = {}
        self._queues: dict[ShareKey, deque[Callable[[], None]]] = {}

    # Partitions of the state topic.

    def coordinator_partition(self, key: ShareKey) -> TopicPartition:
        """Return the partition whose leader stores a share partition's state."""
        topic_id = short_id(key.topic_id)
        return self.partition_of_coordinator_key(f"{key.group_id}:{topic_id}:{key.partition}")

    def partition_of_coordinator_key(self, key: str) -> TopicPartition:
        """Return the same by FindCoordinator's key, `group:topic id:partition`."""
        return TopicPartition(SHARE_STATE_TOPIC, group_partition(key, self._state_partitions()))

    def update_role(self, topic_partition: TopicPartition, leads: bool) -> None:
        """Load the state of a partition that this broker now leads, or unload it.

        Called when `GroupManager.update_role` is. Loading is O(records of the partition).
        """
        topic, partition = topic_partition
        if topic != SHARE_STATE_TOPIC or leads == self._records.leads(partition):
            return
        if not leads:
            self._records.unload(partition)
            del self._states[partition]
            return
        states: dict[ShareKey, ShareState] = {}
        self._states[partition] = states
        for batch in self._records.load(partition):
            for key, state in self._codec.entries(batch):
                _store(states, key, state)

    # Requests.

    def read(self, key: ShareKey, leader_epoch: int, respond: RespondState) -> None:
        """Read the state of a share partition; from then on no former leader may write.

        Args:
            key: the share partition.
            leader_epoch: the epoch of its leader.
            respond: takes the state once the epoch is replicated, or an error;
                FENCED_LEADER_EPOCH: a later leader has read; INVALID_REQUEST: its group has not
                initialized it.
        """

        def updated(previous: ShareState | None) -> ShareState | ErrorCode:
            if previous is None:
                return ErrorCode.INVALID_REQUEST
            if previous.leader_epoch > leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            return previous._replace(leader_epoch=leader_epoch)

        self._change(key, updated, respond)

    def write(self, key: ShareKey, state: ShareState, respond: RespondCode) -> None:
        """Write the state of a share partition.

        ``respond`` gets FENCED_LEADER_EPOCH if a later leader has read the state,
        FENCED_STATE_EPOCH if its offsets were altered meanwhile, and INVALID_REQUEST if they were
        deleted.
        """

        def updated(previous: ShareState | None) -> ShareState | ErrorCode:
            if previous is None:
                return ErrorCode.INVALID_REQUEST
            if previous.state_epoch != state.state_epoch:
                return ErrorCode.FENCED_STATE_EPOCH
            if previous.leader_epoch > state.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            return state

        self._change(key, updated, lambda code, _: respond(code))

    def initialize(
        self, key: ShareKey, state_epoch: int, start_offset: int, respond: RespondCode
    ) -> None:
        """Begin the state of a share partition anew.

        Args:
            key: the share partition.
            state_epoch: the epoch of its group.
            start_offset: the first offset to deliver; -1: the leader finds it by the group's
                settings.
            respond: gets FENCED_STATE_EPOCH if the state has a later epoch.
        """

        def updated(previous: ShareState | None) -> ShareState | ErrorCode:
            if previous is not None and previous.state_epoch > state_epoch:
                return ErrorCode.FENCED_STATE_EPOCH
            leader_epoch = _NOTHING.leader_epoch if previous is None else previous.leader_epoch
            return ShareState(state_epoch, leader_epoch, start_offset)

        self._change(key, updated, lambda code, _: respond(code))

    def delete(self, key: ShareKey, respond: RespondCode) -> None:
        """Delete the state of a share partition."""
        self._change(key, lambda _: None, lambda code, _: respond(code))

    def group_state(self, group_id: str, partition: int) -> Mapping[ShareKey, ShareState] | None:
        """Return a group's share partitions in one partition of the topic; None if this broker does
        not lead it, or has not loaded it yet. O(share partitions)."""
        states = self._states.get(partition)
        if states is None or not self._records.is_committed(partition):
            return None
        return {key: state for key, state in states.items() if key.group_id == group_id}

    def delete_orphans(self, exists: Callable[[UUID], bool]) -> None:
        """Delete all share partitions of deleted topics, in the background. O(share partitions)."""
        keys = [key for states in self._states.values() for key in states]
        for key in keys:
            if not exists(key.topic_id):
                self.delete(key, _ignore)

    # Changes.

    def _change(self, key: ShareKey, updated: _Change, respond: RespondState) -> None:
        """Change one share partition, after all earlier changes."""
        queue = self._queues.setdefault(key, deque())
        queue.append(lambda: self._begin(key, updated, respond))
        if len(queue) == 1:
            queue[0]()

    def _begin(self, key: ShareKey, updated: _Change, respond: RespondState) -> None:
        partition = self.coordinator_partition(key).partition
        states = self._states.get(partition)

        def end(code: ErrorCode, state: ShareState = _NOTHING) -> None:
            with suppress(KeyError):
                queue = self._queues[key]
                queue.popleft()
                if queue:
                    queue[0]()
                else:
                    del self._queues[key]
            respond(code, state)

        if states is None:
            end(ErrorCode.NOT_COORDINATOR)
            return
        if not self._records.is_committed(partition):
            end(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return
        previous = states.get(key)
        after = updated(previous)
        if isinstance(after, ErrorCode) or after == previous:
            end(after if isinstance(after, ErrorCode) else ErrorCode.NONE, previous or _NOTHING)
            return

        def written(code: ErrorCode) -> None:
            if code is ErrorCode.NONE and self._states.get(partition) is states:
                _store(states, key, after)
            end(code, after or _NOTHING)

        self._records.append(partition, [(key, after)], written)

    def _snapshot(self, partition: int) -> Sequence[ShareStateEntry] | None:
        return list(self._states.get(partition, {}).items())


def _store(states: dict[ShareKey, ShareState], key: ShareKey, state: ShareState | None) -> None:
    if state is None:
        states.pop(key, None)
    else:
        states[key] = state


def _ignore(_: object) -> None:
    """Ignore a response."""
