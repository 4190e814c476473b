"""Consumer groups: who belongs to them, what they have committed."""

from purgatory.broker.groups.config import GroupConfig
from purgatory.broker.groups.coordinator import GroupCoordinator
from purgatory.broker.groups.errors import GroupError, GroupRefusal, MemberIdRequired
from purgatory.broker.groups.group import Group, GroupState, Joining, Member
from purgatory.broker.groups.group_offsets import GroupOffsets
from purgatory.broker.groups.offsets_log import OFFSETS_TOPIC, partition_of

__all__ = [
    "OFFSETS_TOPIC",
    "Group",
    "GroupConfig",
    "GroupCoordinator",
    "GroupError",
    "GroupOffsets",
    "GroupRefusal",
    "GroupState",
    "Joining",
    "Member",
    "MemberIdRequired",
    "partition_of",
]
