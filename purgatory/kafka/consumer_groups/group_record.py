"""What is kept of a consumer group, or a share group: a value for each key, the last one holds.

A coordinator that takes over goes on where the former one was: members keep their epochs and what
they hold.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

from purgatory.kafka.consumer_groups.consumer_member import CurrentAssignment, Subscription
from purgatory.kafka.consumer_groups.topic_id_partition import Partitions


class RecordKind(IntEnum):
    """What a record says; numbered as the versions of keys in Kafka's `__consumer_offsets`, those
    of consumer groups."""

    GROUP_EPOCH = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8


class GroupRecordKey(NamedTuple):
    """What a record is about; ``member_id`` is "" where that is the group."""

    group_id: str
    kind: RecordKind
    member_id: str = ""
    is_share: bool = False


GroupRecordValue: TypeAlias = int | Subscription | Partitions | CurrentAssignment
"""An epoch of the group or of its target; or of a member what it said, its target, what it has."""

GroupRecord: TypeAlias = tuple[GroupRecordKey, GroupRecordValue | None]
"""What is so from now on; None: it is deleted."""
