"""What a group's members are answered when something isn't as they think: Kafka's numbers."""

from __future__ import annotations

from enum import IntEnum

_LONGEST_GROUP_ID_BYTES = 2**15 - 1


class GroupError(IntEnum):
    """Error codes of the group APIs."""

    NONE = 0
    REQUEST_TIMED_OUT = 7
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82


class GroupRefusal(Exception):
    """A request that can't be done; carries the code of the answer."""

    def __init__(self, code: GroupError) -> None:
        super().__init__(code.name)
        self.code = code


class MemberIdRequired(GroupRefusal):
    """A new member has to come again with the id that it is given."""

    def __init__(self, member_id: str) -> None:
        super().__init__(GroupError.MEMBER_ID_REQUIRED)
        self.member_id = member_id


def check_group_id(group_id: str) -> None:
    """Refuse what is no group's name.

    Raises:
        GroupRefusal: INVALID_GROUP_ID.
    """
    # Longer ones have no place in the records of committed offsets.
    if not group_id or len(group_id.encode()) > _LONGEST_GROUP_ID_BYTES:
        raise GroupRefusal(GroupError.INVALID_GROUP_ID)
