"""What members of groups are answered, as the fields of the answers by their names on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purgatory.cluster.groups.group import Group, Member
from purgatory.cluster.groups.group_errors import GroupError

Answer = Mapping[str, Any]


def join_answer(group: Group, member: Member) -> Answer:
    """Tell a member that it is in the current generation, and its leader who else is."""
    is_leader = group.leader_id == member.member_id
    return {
        "throttle_time": 0,
        "error_code": 0,
        "generation_id": group.generation,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "leader": group.leader_id,
        "skip_assignment": False,
        "member_id": member.member_id,
        "members": group.roster() if is_leader else (),
    }


def sync_answer(group: Group, member: Member) -> Answer:
    """Give a member its assignment."""
    return {
        "throttle_time": 0,
        "error_code": 0,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "assignment": member.assignment,
    }


def join_refused(member_id: str, code: GroupError) -> Answer:
    """Answer a join that failed."""
    return {
        "throttle_time": 0,
        "error_code": int(code),
        "generation_id": -1,
        "protocol_type": None,
        "protocol_name": "",
        "leader": "",
        "member_id": member_id,
        "members": (),
    }


def sync_refused(code: GroupError) -> Answer:
    """Answer a sync that failed."""
    return {
        "throttle_time": 0,
        "error_code": int(code),
        "protocol_type": None,
        "protocol_name": None,
        "assignment": b"",
    }
