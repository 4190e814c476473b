"""The disk of logs and metadata: the operations that they need, and the machine's own disk.

`RealDisk` calls the operating system. Another disk may be in memory, and lose unforced data.
`FolderLock` keeps a second process off a cluster's folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from purgatory.kafka.errors import ClusterError


class DiskUsage(NamedTuple):
    """The size of a disk in bytes, and the free part of it."""

    total_bytes: int
    free_bytes: int


class Disk(Protocol):
    """Files and folders. Methods behave, and fail, as the functions of `os` with their name.

    Raises:
        OSError: the disk refuses it; every method may raise that.
    """

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        """Open a file, and return its descriptor."""

    def close(self, descriptor: int) -> None:
        """Close a file."""

    def pread(self, descriptor: int, length: int, at: int) -> bytes:
        """Read bytes: fewer at the end of the file."""

    def pwrite(self, descriptor: int, data: bytes, at: int) -> int:
        """Write, and return the number of bytes written: fewer if the disk is nearly full."""

    def ftruncate(self, descriptor: int, length: int) -> None:
        """Truncate the file."""

    def fsync(self, descriptor: int) -> None:
        """Force the file onto the disk, or the entries of a folder."""

    def fdatasync(self, descriptor: int) -> None:
        """Force the contents of the file onto the disk."""

    def size_of(self, descriptor: int) -> int:
        """Return the size of the file in bytes."""

    def lock(self, descriptor: int) -> None:
        """Lock the file until it is closed; a locked one raises at once."""

    def replace(self, old: Path, new: Path) -> None:
        """Rename a file, in place of another one of the new name."""

    def unlink(self, path: Path) -> None:
        """Remove a file from its folder."""

    def mkdir(self, path: Path, mode: int = 0o777) -> None:
        """Make a folder."""

    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a folder, in no order."""

    def is_folder(self, path: Path) -> bool:
        """Whether the path is that of a folder."""

    def disk_usage(self, path: Path) -> DiskUsage:
        """Return the usage of the disk that has a folder."""


class RealDisk:
    """The operating system's disk, by its own functions: these cost no further call."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    ftruncate = staticmethod(os.ftruncate)
    fsync = staticmethod(os.fsync)
    fdatasync = staticmethod(getattr(os, "fdatasync", os.fsync))  # macOS has none
    replace = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)
    is_folder = staticmethod(os.path.isdir)

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a folder, in no order."""
        return os.listdir(path)

    def size_of(self, descriptor: int) -> int:
        """Return the size of the file in bytes."""
        return os.fstat(descriptor).st_size

    def lock(self, descriptor: int) -> None:
        """Lock the file until it is closed; a locked one raises at once."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def disk_usage(self, path: Path) -> DiskUsage:
        """Return the usage of the disk that has a folder."""
        usage = shutil.disk_usage(path)
        return DiskUsage(usage.total, usage.free)


REAL_DISK: Final[Disk] = RealDisk()
_WRITE_CHUNK_BYTES = 128 * 1024


def read_file(disk: Disk, path: Path) -> bytes:
    """Return a file's contents.

    Raises:
        OSError: the file doesn't exist, or can't be read.
    """
    return read_part(disk, path, 0, None)


def read_part(disk: Disk, path: Path, at: int, size: int | None) -> bytes:
    """Return ``size`` bytes of a file from ``at`` on, or all (None); fewer at its end.

    Raises:
        OSError: the file doesn't exist, or can't be read.
    """
    descriptor = disk.open(path, os.O_RDONLY)
    try:
        return disk.pread(descriptor, disk.size_of(descriptor) if size is None else size, at)
    finally:
        disk.close(descriptor)


def write_file(
    disk: Disk, path: Path, parts: Iterable[bytes], forces: bool, mode: int = 0o666
) -> None:
    """Write a file anew, part after part.

    Args:
        disk: the file's.
        path: of the file.
        parts: of its content.
        forces: whether it is forced onto the disk.
        mode: the permissions of a new file.

    Raises:
        OSError: the disk refuses it; part of it may be written.
    """
    descriptor = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        at, held = 0, bytearray()
        for part in parts:
            held += part
            if len(held) >= _WRITE_CHUNK_BYTES:
                at = _write_all(disk, descriptor, bytes(held), at)
                held.clear()
        _write_all(disk, descriptor, bytes(held), at)
        if forces:
            disk.fsync(descriptor)
    finally:
        disk.close(descriptor)


def replace_file(disk: Disk, path: Path, data: bytes, forces: bool, mode: int = 0o666) -> None:
    """Replace a file as a whole.

    Args:
        disk: the file's.
        path: of the file.
        data: its content.
        forces: whether the file and its name are forced onto the disk.
        mode: its permissions.

    Raises:
        OSError: the disk refuses it; the former file is unchanged, or the new one isn't forced.
    """
    new = path.with_name(f"{path.name}.new")
    write_file(disk, new, [data], forces, mode)
    disk.replace(new, path)
    if forces:
        force_folder(disk, path.parent)


def force_folder(disk: Disk, path: Path) -> None:
    """Force a folder's entries onto the disk: until then a power cut may undo changes of them.

    A folder that may not be read can't be forced, and some file systems force no folders: both are
    ignored.

    Raises:
        OSError: the disk refuses it.
    """
    try:
        descriptor = disk.open(path, os.O_RDONLY)
    except PermissionError:
        return
    try:
        disk.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        disk.close(descriptor)


def remove_file(disk: Disk, path: Path) -> None:
    """Remove a file; a missing one is no error.

    Raises:
        OSError: the disk refuses it.
    """
    with suppress(FileNotFoundError):
        disk.unlink(path)


def make_folder(disk: Disk, path: Path, forces: bool = False) -> None:
    """Make a folder and its parents; an existing one is kept.

    Args:
        disk: the folder's.
        path: of the folder.
        forces: whether the entry of a new folder is forced onto the disk.

    Raises:
        OSError: the disk refuses it, or a file has that name.
    """
    if disk.is_folder(path):
        return
    try:
        disk.mkdir(path)
    except FileNotFoundError:
        make_folder(disk, path.parent, forces)
        make_folder(disk, path, forces)
    except FileExistsError:
        if not disk.is_folder(path):
            raise
    else:
        if forces:
            force_folder(disk, path.parent)


def remove_folder(disk: Disk, path: Path) -> None:
    """Remove a folder with its contents, as far as the disk allows."""
    with suppress(OSError):
        for name in disk.listdir(path):
            inner = path / name
            try:
                disk.unlink(inner)
            except OSError:  # a folder; a link to one is removed as a file
                remove_folder(disk, inner)
        disk.rmdir(path)


def list_paths(disk: Disk, folder: Path, *ends: str) -> list[Path]:
    """Return the paths in a folder with one of these endings; none without a folder."""
    try:
        names = disk.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sorted(names) if not ends or name.endswith(ends)]


def _write_all(disk: Disk, descriptor: int, data: bytes, at: int) -> int:
    """Write data, and return the position of its end."""
    written = 0
    while written < len(data):
        written += disk.pwrite(descriptor, data[written:], at + written)
    return at + written


_FILE = ".lock"


class FolderLock:
    """Locks ``folder`` for this process, until it is closed or the process ends in any way.

    Raises:
        ClusterError: another process has locked the folder, or it can't be written to.
    """

    def __init__(self, folder: Path, disk: Disk = REAL_DISK) -> None:
        self._disk = disk
        try:
            make_folder(disk, folder, forces=True)
            self._descriptor = disk.open(folder / _FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ClusterError(f"{folder} can't be written to: {error.strerror}") from error
        try:
            disk.lock(self._descriptor)
        except OSError:
            self.close()
            raise ClusterError(
                f"{folder} is in use by another cluster: end it, or take another folder"
            ) from None

    def close(self) -> None:
        """Release the lock. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._disk.close(descriptor)
