"""Stand-ins for locks, turns and sleeps, so that a scheduler can run the threads.

In a run, each operation is a switch point, and a thread that would block lets others run. Outside
of one they simply work, for the one thread that there is.
"""

from __future__ import annotations

from tests.proofs.core.accesses import access
from tests.proofs.core.scheduler import SCHEDULER, ScheduledThread, at

_LOCK = access("locks", writes=True)
_RLOCK = access("reentrant locks", writes=True)
_STATE_LOCK = access("locks of a state", writes=True)


class CooperativeLock:
    """Stands in for ``threading.Lock``."""

    __slots__ = ("_depth", "_owner")

    reentrant = False
    access = _LOCK

    def __init__(self) -> None:
        self._depth = 0
        self._owner: ScheduledThread | None = None

    @property
    def is_free(self) -> bool:
        """Whether no thread holds it."""
        return self._depth == 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, as ``threading``'s; a wait has no time limit, or no time."""
        at(None, self.access)
        me = SCHEDULER.current
        if self._depth and not (self.reentrant and self._owner is me):
            if not blocking or timeout >= 0:
                return False
            if me is None:
                raise RuntimeError(f"{self} is still held, and nobody runs who could release it")
            SCHEDULER.wait_for(self)
        self._depth += 1
        self._owner = me
        if SCHEDULER.waiting:
            SCHEDULER.look_who_waits()
        return True

    def release(self) -> None:
        """Give it back."""
        if SCHEDULER.is_aborting:
            return
        at(None, self.access)
        if not self._depth:
            raise RuntimeError("release of a lock that nobody holds")
        self._depth -= 1
        if SCHEDULER.waiting:
            SCHEDULER.look_who_waits()

    def locked(self) -> bool:
        """Whether somebody holds it."""
        at(None, self.access)
        return self._depth > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def __repr__(self) -> str:
        holder = "somebody" if self._owner is None else self._owner.name
        return f"{type(self).__name__} held by {holder}" if self._depth else type(self).__name__


class CooperativeRLock(CooperativeLock):
    """Stands in for ``threading.RLock``."""

    __slots__ = ()

    reentrant = True
    access = _RLOCK

    def _is_owned(self) -> bool:
        """Whether the thread that asks holds it."""
        return self._depth > 0 and self._owner is SCHEDULER.current


class CooperativeStateLock(CooperativeRLock):
    """Stands in for the lock of a purgatory's state."""

    __slots__ = ()

    access = _STATE_LOCK

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it."""
        taken = super().acquire(blocking, timeout)
        if taken and SCHEDULER.current is not None:
            SCHEDULER.hold_turn(1)
        return taken

    def release(self) -> None:
        """Give it back."""
        super().release()
        if SCHEDULER.current is not None and not SCHEDULER.is_aborting:
            SCHEDULER.hold_turn(-1)


def sleep(seconds: float) -> None:
    """Stand in for ``time.sleep``."""
    if SCHEDULER.current is None:
        SCHEDULER.now_s += seconds
    else:
        SCHEDULER.sleep(seconds)


def monotonic() -> float:
    """Stand in for ``time.monotonic``: time passes by sleeping."""
    return SCHEDULER.now_s
