"""What is stored of a classic group when a rebalance is over, and when the group is empty.

A coordinator that takes over reads it: members keep their generation and their assignments.

Ground rules: all values are immutable.
"""

from __future__ import annotations

from typing import NamedTuple


class ClassicMemberRecord(NamedTuple):
    """A member of a stored generation. Times are in milliseconds.

    Args:
        subscription: its metadata for the protocol of the group.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class ClassicGroupRecord(NamedTuple):
    """A stored generation of a group; an empty group has no members.

    Args:
        protocol_type: "" before the first member.
        protocol, leader_id: None without members.
        state_ms: when the group came into its state, in milliseconds since 1970; -1: unknown.
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader_id: str | None
    state_ms: int
    members: tuple[ClassicMemberRecord, ...] = ()
