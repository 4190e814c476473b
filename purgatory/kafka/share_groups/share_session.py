"""The share sessions of members at one broker: the partitions that each member fetches.

epoch 0      begins a session; ends the one that the member had
epoch 1 ...  continues it
epoch -1     ends it
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


class ShareSessionKey(NamedTuple):
    """A member, by which its session is found."""

    group_id: str
    member_id: str


@dataclass
class ShareSession:
    """The partitions that a member fetches, in the order in which records are acquired, and
    whether the next response tells of each, even without records."""

    owner: ShareSessionKey
    connection: Hashable
    epoch: int = FIRST_EPOCH + 1
    is_open: bool = True
    partitions: dict[ShareKey, bool] = field(default_factory=dict)

    def rotated(self, epoch: int) -> list[ShareKey]:
        """Return the partitions, each time another one first. O(n).

        Args:
            epoch: that of the request.
        """
        keys = list(self.partitions)
        first = max(epoch, 0) % len(keys) if keys else 0
        return keys[first:] + keys[:first]

    def update(self, added: Iterable[ShareKey], forgotten: Iterable[ShareKey]) -> None:
        """Add partitions, and forget some. O(those)."""
        is_new = self.epoch > FIRST_EPOCH + 1
        for key in added:
            self.partitions.setdefault(key, is_new)
        for key in forgotten:
            self.partitions.pop(key, None)

    def must_tell(self, key: ShareKey, has_error: bool, has_records: bool) -> bool:
        """Return whether a response that isn't the session's first one tells of a partition. One
        with records is the last in order then. O(1)."""
        tells = has_error or has_records or self.partitions.get(key, False)
        if key in self.partitions:
            self.partitions[key] = has_error
            if has_records:
                self.partitions[key] = self.partitions.pop(key)
        return tells


class ShareSessions:
    """The sessions at one broker.

    Args:
        most: the limit of sessions.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._sessions: dict[ShareSessionKey, ShareSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, owner: ShareSessionKey, connection: Hashable) -> ShareSession:
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

    def continue_session(self, owner: ShareSessionKey, epoch: int) -> ShareSession:
        """Return the session that continues with this epoch, or ends with -1. O(1).

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

    def end(self, owner: ShareSessionKey) -> ShareSession | None:
        """End a member's session; return it, or None if there was none. O(1)."""
        session = self._sessions.pop(owner, None)
        if session is not None:
            session.is_open = False
        return session

    def connection_sessions(self, connection: Hashable) -> list[ShareSession]:
        """Return the sessions of a connection. O(sessions)."""
        return [session for session in self._sessions.values() if session.connection == connection]

    def group_sessions(self, group_id: str) -> Iterable[ShareSession]:
        """Return a group's sessions. O(sessions)."""
        return [
            session for session in self._sessions.values() if session.owner.group_id == group_id
        ]
