"""What is asked of a lock that a user passes in."""

from __future__ import annotations

from typing import Protocol


class LockLike(Protocol):
    """What an operation asks of a lock that is passed in, as of ``threading``'s Lock and RLock."""

    def acquire(self, blocking: bool = ..., /) -> bool:
        """Take the lock; if not ``blocking``, only if it is free."""

    def release(self) -> None:
        """Give it back."""
