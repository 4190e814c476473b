"""The records of groups of all kinds: their keys, and their values.

A coordinator that takes over reads them: members keep their epochs, and what they hold.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

from purgatory.kafka.groups.consumer_group_member import (
    CurrentAssignment,
    InitializedPartitions,
    Subscription,
)
from purgatory.kafka.groups.group import ClassicGroupRecord
from purgatory.kafka.groups.streams_member import (
    CurrentTasks,
    StreamsClient,
    StreamsEpoch,
    TargetEpoch,
    Tasks,
)
from purgatory.kafka.groups.streams_topology import Topology
from purgatory.kafka.topic_partition import Partitions


class RecordKind(IntEnum):
    """The kind of a record, numbered as the key versions in Kafka's `__consumer_offsets`: those of
    classic groups, of consumer groups (also for share groups), and of streams groups."""

    CLASSIC = 2
    GROUP_EPOCH = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    SHARE_STATE = 15
    STREAMS_EPOCH = 17
    STREAMS_MEMBER = 19
    STREAMS_TARGET_EPOCH = 20
    STREAMS_TARGET = 21
    STREAMS_CURRENT = 22
    STREAMS_TOPOLOGY = 23

    @property
    def is_of_streams(self) -> bool:
        """Whether streams groups have such records."""
        return self >= RecordKind.STREAMS_EPOCH


class GroupRecordKey(NamedTuple):
    """The key of a record; ``member_id`` is "" in records of the group itself."""

    group_id: str
    kind: RecordKind
    member_id: str = ""
    is_share: bool = False


GroupRecordValue: TypeAlias = (
    int
    | Subscription
    | Partitions
    | CurrentAssignment
    | ClassicGroupRecord
    | InitializedPartitions
    | StreamsEpoch
    | TargetEpoch
    | StreamsClient
    | Tasks
    | CurrentTasks
    | Topology
)
"""An epoch of the group or of its target; a member's report, target or assignment; a generation of
a classic group; the partitions of a share group that have a state; or the same of a streams group,
and its topology."""

GroupRecord: TypeAlias = tuple[GroupRecordKey, GroupRecordValue | None]
"""The new value; None: it is deleted."""
