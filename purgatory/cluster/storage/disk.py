"""What the logs and the metadata of a cluster ask of the disk that they lie on.

`RealDisk` asks the operating system. Another one may lie in memory, and lose what was not forced.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol


class Room(NamedTuple):
    """How many bytes a disk has, and how many of them are free."""

    total_bytes: int
    free_bytes: int


class Disk(Protocol):
    """Files and folders. What `os` has by the same name does the same, and fails as it does.

    Raises:
        OSError: the disk refuses it: everything may raise that.
    """

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        """Open a file, and return its descriptor."""

    def close(self, descriptor: int) -> None:
        """Close it."""

    def pread(self, descriptor: int, length: int, at: int) -> bytes:
        """Return what is there: less, at the end of the file."""

    def pwrite(self, descriptor: int, data: bytes, at: int) -> int:
        """Write, and return how many bytes were taken: less, on a disk that is nearly full."""

    def ftruncate(self, descriptor: int, length: int) -> None:
        """Cut the file."""

    def fsync(self, descriptor: int) -> None:
        """Force the file onto the disk, or the entries of a folder."""

    def fdatasync(self, descriptor: int) -> None:
        """Force the contents of the file onto the disk."""

    def size_of(self, descriptor: int) -> int:
        """Return how many bytes the file has."""

    def lock(self, descriptor: int) -> None:
        """Lock the file until it is closed; who can't have the lock is refused at once."""

    def replace(self, old: Path, new: Path) -> None:
        """Give a file another name, which may be another one's so far."""

    def unlink(self, path: Path) -> None:
        """Take a file out of its folder."""

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        """Make a folder."""

    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a folder, in no order."""

    def is_folder(self, path: Path) -> bool:
        """Whether there is a folder of that path."""

    def room_at(self, path: Path) -> Room:
        """Return how much room there is in a folder."""
