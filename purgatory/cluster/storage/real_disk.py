"""The disk of the machine that this runs on."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Final

from purgatory.cluster.storage.disk import Disk, Room


class RealDisk:
    """`Disk` as the operating system has it: its functions themselves, which costs nothing."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    ftruncate = staticmethod(os.ftruncate)
    fsync = staticmethod(os.fsync)
    fdatasync = staticmethod(os.fdatasync)
    replace = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)
    is_folder = staticmethod(os.path.isdir)

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a folder, in no order."""
        return os.listdir(path)

    def size_of(self, descriptor: int) -> int:
        """Return how many bytes the file has."""
        return os.fstat(descriptor).st_size

    def lock(self, descriptor: int) -> None:
        """Lock the file until it is closed; who can't have the lock is refused at once."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def room_at(self, path: Path) -> Room:
        """Return how much room there is in a folder."""
        usage = shutil.disk_usage(path)
        return Room(usage.total, usage.free)


REAL_DISK: Final[Disk] = RealDisk()
