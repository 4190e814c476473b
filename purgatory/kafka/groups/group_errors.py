"""What is raised in a group's coordinator when a request can't be done."""

from __future__ import annotations

from purgatory.kafka.errors import ErrorCode

_LONGEST_GROUP_ID_BYTES = 2**15 - 1


class GroupRefusal(Exception):
    """A request that can't be done; carries the code of the answer."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class MemberIdRequired(GroupRefusal):
    """A new member has to come again with the id that it is given."""

    def __init__(self, member_id: str) -> None:
        super().__init__(ErrorCode.MEMBER_ID_REQUIRED)
        self.member_id = member_id


def check_group_id(group_id: str) -> None:
    """Refuse what is no group's name.

    Raises:
        GroupRefusal: INVALID_GROUP_ID.
    """
    # Longer ones have no place in the records of committed offsets.
    if not group_id or len(group_id.encode()) > _LONGEST_GROUP_ID_BYTES:
        raise GroupRefusal(ErrorCode.INVALID_GROUP_ID)
