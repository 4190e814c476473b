"""What is asked of a lock that a user passes in."""

from __future__ import annotations

from typing import Protocol

from timer.safe_log import safe_repr


class LockLike(Protocol):
    """What an operation asks of a lock that is passed in, as of ``threading``'s Lock and RLock."""

    def acquire(self, blocking: bool = ..., /) -> bool:
        """Take the lock; if not ``blocking``, only if it is free."""

    def release(self) -> None:
        """Give it back."""


def check_lock(lock: object) -> None:
    """Raise TypeError if ``lock`` can't be one."""
    if isinstance(lock, type) or not (hasattr(lock, "acquire") and hasattr(lock, "release")):
        raise TypeError(
            f"lock must have acquire and release, as threading.Lock() has: {safe_repr(lock)}"
        )
