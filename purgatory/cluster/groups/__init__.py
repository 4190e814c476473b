"""Consumer groups: who belongs to them, what they have committed."""

from purgatory.cluster.groups.coordinator import GroupCoordinator
from purgatory.cluster.groups.group import Group, GroupState, Joining, Member
from purgatory.cluster.groups.group_config import GroupConfig
from purgatory.cluster.groups.group_errors import GroupError, GroupRefusal, MemberIdRequired
from purgatory.cluster.groups.group_offsets import GroupOffsets
from purgatory.cluster.groups.offsets_log import OFFSETS_TOPIC, partition_of

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
