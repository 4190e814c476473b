"""A group whose coordinator assigns, in epochs: its members, and its records that have changed.

    ConsumerGroup    assigns partitions (KIP-848); so does ShareGroup (KIP-932)
    StreamsGroup     assigns tasks (KIP-1071)

The waits for its members are in `group_timeouts`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import ClassVar, Generic, TypeVar

from purgatory.core.keys import MemberKey, MemberRebalanceKey
from purgatory.core.operation import DelayedOperation
from purgatory.kafka.groups.group_records import (
    GroupRecord,
    GroupRecordKey,
    GroupRecordValue,
    RecordKind,
)

FIRST_EPOCH = 1
"""The epoch of a group before its first change: as in Kafka, its first subscription makes it 2."""

MemberT = TypeVar("MemberT")


class EpochGroup(ABC, Generic[MemberT]):
    """The members of one group, by member id.

    Args:
        group_id: its name.
    """

    is_share = False
    own_kinds: ClassVar[Sequence[RecordKind]] = (RecordKind.GROUP_EPOCH, RecordKind.TARGET_EPOCH)
    """The kinds of records that it has without members."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.target_epoch = 0
        self.members: dict[str, MemberT] = {}
        self.sessions: dict[str, DelayedOperation] = {}
        """The waits for the members' next heartbeats."""
        self._changed_keys: dict[GroupRecordKey, None] = {}

    @property
    @abstractmethod
    def state(self) -> Enum:
        """The group's state, in Kafka's words. O(members)."""

    @abstractmethod
    def _value_of(self, key: GroupRecordKey) -> GroupRecordValue | None:
        """Return the value of a record; None: it is deleted."""

    @abstractmethod
    def replace_member(self, member: MemberT) -> None:
        """Add or update a member. O(1)."""

    @abstractmethod
    def subscribed_names(self) -> set[str]:
        """Return the names of the topics that members read. O(members + topics)."""

    def session_key(self, member_id: str) -> MemberKey:
        """Return the watch key of a member's next heartbeat."""
        return MemberKey(self.group_id, member_id)

    def rebalance_key(self, member_id: str) -> MemberRebalanceKey:
        """Return the watch key of a member's revocation."""
        return MemberRebalanceKey(self.group_id, member_id)

    # Its records.

    def _mark_changed(self, kind: RecordKind, member_id: str = "") -> None:
        key = GroupRecordKey(self.group_id, kind, member_id, self.is_share)
        self._changed_keys.pop(key, None)
        self._changed_keys[key] = None

    def mark_unsaved(self, keys: Iterable[GroupRecordKey]) -> None:
        """Mark drained records as changed again, after their write has failed."""
        self._changed_keys.update(dict.fromkeys(keys))

    @property
    def has_changes(self) -> bool:
        """Whether any record is to be written."""
        return bool(self._changed_keys)

    def drain_changes(self) -> list[GroupRecord]:
        """Return and clear the changed records. O(changed records)."""
        changed, self._changed_keys = self._changed_keys, {}
        return [(key, self._value_of(key)) for key in changed]
