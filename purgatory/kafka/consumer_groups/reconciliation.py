"""The next step of a member on its way to its target: it gives up before it is given.

Ground rules
------------
* Values in, values out: nothing is changed.
* A partition is given to a member only when nobody holds it, be it read or about to be given up.
* A member comes to the target's epoch when it holds nothing any more that is not in its target.
"""

from __future__ import annotations

from collections.abc import Callable

from purgatory.kafka.consumer_groups.consumer_member import CurrentAssignment, MemberState
from purgatory.kafka.consumer_groups.topic_id_partition import (
    NO_PARTITIONS,
    Partitions,
    TopicIdPartition,
)


def reconciled(
    current: CurrentAssignment,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_held: Callable[[TopicIdPartition], bool],
) -> CurrentAssignment:
    """Return what a member has after a heartbeat.

    Args:
        current: what it had.
        target, target_epoch: what it is to have, and since which epoch of the group.
        owned: what the member says it owns; None where it doesn't say.
        is_held: whether a partition is some member's, or about to be given up by one.

    O(partitions of the member).
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and _owns(owned, current.revoking):
        return current
    kept = current.assigned & target
    revoking = current.assigned - target
    if revoking and _owns(owned, revoking):
        return current._replace(
            state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking
        )
    missing = target - kept
    free = frozenset(one for one in missing if not is_held(one))
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED_PARTITIONS
    after = current._replace(state=state, assigned=kept | free, revoking=NO_PARTITIONS)
    return after.at_epoch(target_epoch)


def _owns(owned: Partitions | None, revoking: Partitions) -> bool:
    """Whether a member has yet to give up some of these; it may, where it doesn't say."""
    return owned is None or not owned.isdisjoint(revoking)
