"""What moves a purgatory's timer, as the purgatory sees it."""

from __future__ import annotations

from typing import Protocol


class Reaper(Protocol):
    """Moves the timer whenever something is due: a thread, or an event loop's timer."""

    restarts: int
    """How many times it had to be started anew."""

    @property
    def is_alive(self) -> bool:
        """Whether it will move the timer."""

    @property
    def last_advance_ns(self) -> int:
        """Its heartbeat, by the timer's clock."""

    def restart_if_dead(self) -> bool:
        """Start it anew if it had died, and say whether it had."""

    def stop_soon(self) -> None:
        """Tell it to end; don't wait for it."""

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end, at most ``timeout_s``."""

    def after_fork(self) -> None:
        """In the child: forget the parent's thread."""
