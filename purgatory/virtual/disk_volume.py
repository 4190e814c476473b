"""A part of a virtual disk that fills up by itself: the one of a broker, or the cluster's."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from purgatory.cluster.storage import Room
from purgatory.virtual.errors import WorldError

_TOTAL_BYTES: Final = 2**40


class DiskVolume:
    """How full it is.

    Args:
        path: where its folders begin.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.used_bytes = 0
        """What its files take. One that was taken out of its folder takes nothing any more."""
        self._limit_bytes: int | None = None

    @property
    def room(self) -> Room:
        """How much it holds, and how much of that is free."""
        total = _TOTAL_BYTES if self._limit_bytes is None else self._limit_bytes
        return Room(total, max(0, total - self.used_bytes))

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be written."""
        return not self.room.free_bytes

    def fill(self, after_bytes: int = 0) -> None:
        """Have it be full once so many bytes more are written: "No space left on device".

        Raises:
            WorldError: there are no bytes fewer than none.
        """
        if after_bytes < 0:
            raise WorldError(f"fill(after_bytes={after_bytes}): must be at least 0")
        self._limit_bytes = self.used_bytes + after_bytes

    def make_room(self) -> None:
        """Have it hold as much as anybody writes."""
        self._limit_bytes = None
