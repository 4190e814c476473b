"""What members of groups are answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from purgatory.kafka.errors import ErrorCode


class RosterEntry(NamedTuple):
    """A member as the leader is told of it: its ids, and what it said for the chosen protocol."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """Tells a member that it is in the current generation, and its leader who else is; or, with an
    error, that it is not."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str = ""
    roster: Sequence[RosterEntry] = ()


class SyncAnswer(NamedTuple):
    """Gives a member its assignment, unless there is an error."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


RespondJoin = Callable[[JoinAnswer], object]
RespondSync = Callable[[SyncAnswer], object]
