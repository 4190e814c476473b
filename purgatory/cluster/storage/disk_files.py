"""Whole files and folders, of what a disk does."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from purgatory.cluster.storage.disk import Disk

_WRITTEN_AT_ONCE_BYTES = 128 * 1024


def read_file(disk: Disk, path: Path) -> bytes:
    """Return what is in a file.

    Raises:
        OSError: it isn't there, or can't be read.
    """
    return read_part(disk, path, 0, None)


def read_part(disk: Disk, path: Path, at: int, size: int | None) -> bytes:
    """Return so much of a file from there on, all that follows for None; less, where it ends.

    Raises:
        OSError: it isn't there, or can't be read.
    """
    descriptor = disk.open(path, os.O_RDONLY)
    try:
        return disk.pread(descriptor, disk.size_of(descriptor) if size is None else size, at)
    finally:
        disk.close(descriptor)


def write_file(
    disk: Disk, path: Path, parts: Iterable[bytes], forces: bool, mode: int = 0o666
) -> None:
    """Write a file anew, one part behind the other.

    Args:
        disk: on which.
        path: of the file.
        parts: of what is to be in it.
        forces: whether it is forced onto the disk.
        mode: who may do what with it, where it is made.

    Raises:
        OSError: the disk refuses it; part of it may be there.
    """
    descriptor = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        at, held = 0, bytearray()
        for part in parts:
            held += part
            if len(held) >= _WRITTEN_AT_ONCE_BYTES:
                at = _write_all(disk, descriptor, bytes(held), at)
                held.clear()
        _write_all(disk, descriptor, bytes(held), at)
        if forces:
            disk.fsync(descriptor)
    finally:
        disk.close(descriptor)


def replace_file(disk: Disk, path: Path, data: bytes, forces: bool, mode: int = 0o666) -> None:
    """Put a file in the place of the one before, as a whole.

    Args:
        disk: on which.
        path: of the file.
        data: what is to be in it.
        forces: whether it is forced onto the disk, and that it has the name.
        mode: who may do what with it.

    Raises:
        OSError: the disk refuses it; the one before is as it was, or the new one isn't forced.
    """
    new = path.with_name(f"{path.name}.new")
    write_file(disk, new, [data], forces, mode)
    disk.replace(new, path)
    if forces:
        force_folder(disk, path.parent)


def force_folder(disk: Disk, path: Path) -> None:
    """Force onto the disk which files a folder has: until then a power cut may undo each change.

    One that may not be read can't be forced, and some file systems force no folders: that is left
    to them.

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
    """Remove a file; one that isn't there is no error.

    Raises:
        OSError: the disk refuses it.
    """
    with suppress(FileNotFoundError):
        disk.unlink(path)


def make_folder(disk: Disk, path: Path, forces: bool = False) -> None:
    """Make a folder, and those that it is to be in; one that is there is no error.

    Args:
        disk: on which.
        path: of the folder.
        forces: whether it is forced onto the disk that it is there, where it is made.

    Raises:
        OSError: the disk refuses it, or there is a file of that name.
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
    """Remove a folder with all that is in it, as far as the disk lets go of it."""
    with suppress(OSError):
        for name in disk.listdir(path):
            inner = path / name
            try:
                disk.unlink(inner)
            except OSError:  # it is a folder; a link to one is not
                remove_folder(disk, inner)
        disk.rmdir(path)


def paths_in(disk: Disk, folder: Path, *ends: str) -> list[Path]:
    """Return the paths in a folder that end in one of these; none where there is no folder."""
    try:
        names = disk.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sorted(names) if not ends or name.endswith(ends)]


def _write_all(disk: Disk, descriptor: int, data: bytes, at: int) -> int:
    """Write it, and return where it ends."""
    written = 0
    while written < len(data):
        written += disk.pwrite(descriptor, data[written:], at + written)
    return at + written
