"""Share sessions (KIP-932): which partitions a member fetches at one broker, from fetch to fetch.

    epoch 0      begins a session; ends the one that the member had
    epoch 1 ...  goes on with it
    epoch -1     ends it

Ground rules: one thread, that of the event loop.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.share_groups.share_state import ShareKey

FIRST_EPOCH = 0
FINAL_EPOCH = -1
_LAST_EPOCH = 2**31 - 1


class SessionOwner(NamedTuple):
    """Whose a session is."""

    group_id: str
    member_id: str


@dataclass
class ShareSession:
    """What a member fetches, in the order in which partitions get their part of an answer."""

    owner: SessionOwner
    connection: Hashable
    epoch: int = FIRST_EPOCH + 1
    partitions: dict[ShareKey, None] = field(default_factory=dict)

    def rotated(self) -> list[ShareKey]:
        """Return the partitions, each time another one first. O(n)."""
        keys = list(self.partitions)
        first = self.epoch % len(keys) if keys else 0
        return keys[first:] + keys[:first]


class ShareSessions:
    """The sessions at one broker.

    Args:
        most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sessions: dict[SessionOwner, ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, owner: SessionOwner, connection: Hashable) -> ShareSession:
        """Begin a session; the one that the member had is to be ended before. O(1).

        Raises:
            KafkaError: SHARE_SESSION_LIMIT_REACHED.
        """
        if len(self._sessions) >= self._most:
            raise KafkaError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED, f"there are {self._most} share sessions"
            )
        session = self._sessions[owner] = ShareSession(owner, connection)
        return session

    def go_on(self, owner: SessionOwner, epoch: int) -> ShareSession:
        """Return the session that goes on with this epoch, or ends with -1. O(1).

        Raises:
            KafkaError: SHARE_SESSION_NOT_FOUND or INVALID_SHARE_SESSION_EPOCH.
        """
        session = self._sessions.get(owner)
        if session is None:
            raise KafkaError(
                ErrorCode.SHARE_SESSION_NOT_FOUND, f"{owner.member_id} has no share session here"
            )
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise KafkaError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                f"the next epoch of the session is {session.epoch}, and not {epoch}",
            )
        session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        return session

    def end(self, owner: SessionOwner) -> ShareSession | None:
        """End a member's session; return it, or None if there was none. O(1)."""
        return self._sessions.pop(owner, None)

    def of_connection(self, connection: Hashable) -> list[ShareSession]:
        """Return the sessions that came by a connection. O(sessions)."""
        return [one for one in self._sessions.values() if one.connection == connection]

    def of_group(self, group_id: str) -> Iterable[ShareSession]:
        """Return a group's sessions. O(sessions)."""
        return [one for one in self._sessions.values() if one.owner.group_id == group_id]
