"""The fencing of static members (KIP-345): an instance id has one member, and others are fenced."""

from __future__ import annotations

from purgatory.kafka.errors import ErrorCode, GroupRefusal
from purgatory.kafka.groups.consumer_group import ConsumerGroup
from purgatory.kafka.groups.group import Group


def member_of_instance(
    group: Group | ConsumerGroup, instance_id: str, member_id: str, *, may_be_unknown: bool = False
) -> str:
    """Return the member of an instance id, and fence any other.

    Args:
        group: with static members, or without.
        instance_id: of the request.
        member_id: of the request.
        may_be_unknown: whether a request without a member id stands for that of the instance.

    Raises:
        GroupRefusal: UNKNOWN_MEMBER_ID: the instance has no member; FENCED_INSTANCE_ID: it is
            another one.
    """
    holder = group.static_members.get(instance_id)
    if holder is None:
        raise GroupRefusal(
            ErrorCode.UNKNOWN_MEMBER_ID, message=f"{instance_id} is no member of {group.group_id}"
        )
    if holder != member_id and not (may_be_unknown and not member_id):
        raise GroupRefusal(
            ErrorCode.FENCED_INSTANCE_ID, message=f"{holder} is in the group as {instance_id}"
        )
    return holder
