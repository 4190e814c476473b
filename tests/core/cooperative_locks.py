"""What stands in for locks, turns and sleeps, so that a scheduler can run the threads.

In a run, each operation is a switch point, and who would block lets others go on. Outside of one
they simply work, for the one thread that there is.
"""

from __future__ import annotations

from tests.core.scheduler import Active, ScheduledThread, point


class CooperativeLock:
    """Stands in for ``threading.Lock``."""

    reentrant = False

    def __init__(self) -> None:
        self._depth = 0
        self._owner: ScheduledThread | None = None

    @property
    def is_free(self) -> bool:
        """Whether nobody holds it."""
        return self._depth == 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, as ``threading``'s; a wait has no time limit, or no time."""
        scheduler = Active.scheduler
        me = None
        if scheduler is not None:
            scheduler.point()
            me = scheduler.current
        if self._depth and not (self.reentrant and self._owner is me):
            if not blocking or timeout >= 0:
                return False
            if scheduler is None:
                raise RuntimeError(f"{self} is still held, and nobody runs who could release it")
            scheduler.wait_for(self)
        self._depth += 1
        self._owner = me
        if self.reentrant and scheduler is not None:
            scheduler.enter_guard(1)
        return True

    def release(self) -> None:
        """Give it back."""
        scheduler = Active.scheduler
        if scheduler is not None:
            if scheduler.aborting:
                return
            scheduler.point()
            if self.reentrant:
                scheduler.enter_guard(-1)
        if not self._depth:
            raise RuntimeError("release of a lock that nobody holds")
        self._depth -= 1

    def locked(self) -> bool:
        """Whether somebody holds it."""
        point()
        return self._depth > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def __repr__(self) -> str:
        holder = "somebody" if self._owner is None else self._owner.name
        return f"{type(self).__name__} held by {holder}" if self._depth else type(self).__name__


class CooperativeRLock(CooperativeLock):
    """Stands in for ``threading.RLock``; in the core these are what guards plain data."""

    reentrant = True


class CooperativeTurn(dict[str, list[int]]):
    """Stands in for the dict of a ``Turn``: who has it guards plain data."""

    def setdefault(self, key: str, default: list[int] | None = None) -> list[int]:
        """Take the turn, unless somebody has it."""
        assert default is not None
        holder = super().setdefault(key, default)
        if holder is default and Active.scheduler is not None:
            Active.scheduler.enter_guard(1)
        return holder

    @property
    def is_free(self) -> bool:
        """Whether it is nobody's turn."""
        return not self

    def pause(self) -> None:
        """Let the holder end his turn."""
        if Active.scheduler is not None:
            Active.scheduler.wait_for(self)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        scheduler = Active.scheduler
        if scheduler is not None and not scheduler.aborting:
            scheduler.enter_guard(-1)
            scheduler.point()


def sleep(seconds: float) -> None:
    """Stand in for ``time.sleep``."""
    scheduler = Active.scheduler
    if scheduler is not None:
        scheduler.sleep(seconds)


def monotonic() -> float:
    """Stand in for ``time.monotonic``: time passes by sleeping."""
    scheduler = Active.scheduler
    return 0.0 if scheduler is None else scheduler.now_s
