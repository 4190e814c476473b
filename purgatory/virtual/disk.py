"""A disk in memory that can lose power, with its unforced writes, and fill up.

The disk implements `purgatory.cluster.storage.Disk`. Its volumes have their own limit and power: a
broker's folder is a volume.

After a power cut
-----------------
* Each file has all forced changes, and a prefix of the later ones. The next write may be torn: a
  prefix of its bytes, followed by zeros or, within one block, garbage.
* Each folder has the forced entries, and a prefix of the later changes per name. Renames
  (`replace`) are atomic: a file always has its former name or its new one.
* Descriptors opened before can still read the file as it was, since a broker reads before it sends,
  but not write to it.

Ground rules: only the world's own thread touches it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from purgatory.cluster.storage import DiskUsage
from purgatory.virtual.errors import WorldError

_TOTAL_BYTES: Final = 2**40


class DiskVolume:
    """The space of one volume.

    Args:
        path: its mount point.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.used_bytes = 0
        """The size of its files, unlinked ones excluded."""
        self._limit_bytes: int | None = None

    @property
    def usage(self) -> DiskUsage:
        """Its total and free space."""
        total = _TOTAL_BYTES if self._limit_bytes is None else self._limit_bytes
        return DiskUsage(total, max(0, total - self.used_bytes))

    @property
    def is_full(self) -> bool:
        """Whether it has no free space."""
        return not self.usage.free_bytes

    def fill(self, after_bytes: int = 0) -> None:
        """Limit the free space: then writes fail with "No space left on device".

        Raises:
            WorldError: ``after_bytes`` is negative.
        """
        if after_bytes < 0:
            raise WorldError(f"fill(after_bytes={after_bytes}): must be at least 0")
        self._limit_bytes = self.used_bytes + after_bytes

    def remove_limit(self) -> None:
        """Remove the limit."""
        self._limit_bytes = None


DiskPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A path as the functions of `os` take it; the working directory is the root."""


def _absolute(path: DiskPath) -> Path:
    text = os.fsdecode(path)
    if not text:
        raise _error(errno.ENOENT)
    return Path("/" + posixpath.normpath(posixpath.join("/", text)).lstrip("/"))


N = TypeVar("N")


class DiskEntries(Generic[N]):
    """The entries of a folder; forced ones survive a power cut.

    Args:
        entries: initial ones, which are forced.
    """

    def __init__(self, entries: Mapping[str, N] | None = None) -> None:
        self._durable: dict[str, N] = dict(entries or {})
        self._entries = dict(self._durable)
        self._pending_changes: list[Mapping[str, N | None]] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> N | None:
        """Return the entry of a name, or None."""
        return self._entries.get(name)

    def change(self, change: Mapping[str, N | None]) -> None:
        """Change or remove (None) entries atomically, also in a power cut."""
        self._pending_changes.append(change)
        _apply(change, self._entries)

    def force(self) -> None:
        """Force all entries."""
        self._durable = dict(self._entries)
        self._pending_changes.clear()

    def recover_from_power_cut(self, rng: random.Random) -> dict[str, N]:
        """Return the entries after a power cut: a prefix of the changes in each group of names."""
        remaining = dict(self._durable)
        for changes in self._rename_groups():
            for change in changes[: rng.randint(0, len(changes))]:
                _apply(change, remaining)
        return remaining

    def _rename_groups(self) -> list[list[Mapping[str, N | None]]]:
        """The changes, grouped by names that renames connect."""
        group_of: dict[str, list[Mapping[str, N | None]]] = {}
        for change in self._pending_changes:
            for name in change:
                group_of.setdefault(name, [])
        groups_of_change = []
        for change in self._pending_changes:
            groups_of_change.append(change)
            first, *others = change
            for other in others:
                merged = group_of[other]
                if merged is not group_of[first]:
                    for name, group in group_of.items():
                        if group is merged:
                            group_of[name] = group_of[first]
        for change in groups_of_change:
            group_of[next(iter(change))].append(change)
        return list({id(group): group for group in group_of.values()}.values())


def _apply(change: Mapping[str, N | None], entries: dict[str, N]) -> None:
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


BLOCK_BYTES: Final = 4096
"""The unit of a write: garbage is within one block."""


class _Change(NamedTuple):
    """A write or a truncation, with the former bytes from ``at`` and the former size."""

    at: int
    before: bytes
    written_bytes: int
    previous_size: int


class DiskContents:
    """The contents of a file; forced changes survive a power cut.

    Args:
        data: initial bytes, which are forced.
    """

    def __init__(self, data: bytes = b"") -> None:
        self._data = bytearray(data)
        self._pending_changes: list[_Change] = []

    def __len__(self) -> int:
        return len(self._data)

    def read(self, at: int, length: int) -> bytes:
        """Return the bytes, fewer at the end of the file."""
        return bytes(self._data[at : at + length])

    def write(self, at: int, data: bytes) -> None:
        """Write; fill a gap before ``at`` with zeros."""
        size = len(self._data)
        before = bytes(self._data[at : at + len(data)])
        self._pending_changes.append(_Change(at, before, len(data), size))
        self._data += bytes(max(0, at - size))
        self._data[at : at + len(data)] = data

    def cut(self, length: int) -> None:
        """Truncate it, or extend it with zeros."""
        size = len(self._data)
        if length > size:
            self.write(size, bytes(length - size))
        elif length < size:
            self._pending_changes.append(_Change(length, bytes(self._data[length:]), 0, size))
            del self._data[length:]

    def force(self) -> None:
        """Force all changes."""
        self._pending_changes.clear()

    def recover_from_power_cut(self, rng: random.Random) -> bytes:
        """Return the contents after a power cut. O(bytes + changes without fsync)."""
        count = len(self._pending_changes)
        survivors = rng.choice((0, count, rng.randint(0, count)))
        data, torn_write = bytearray(self._data), b""
        for change in reversed(self._pending_changes[survivors:]):
            torn_write = bytes(data[change.at : change.at + change.written_bytes])
            end = change.at + max(change.written_bytes, len(change.before))
            data[change.at : end] = change.before
            del data[change.previous_size :]
        if survivors < count and torn_write:
            _tear_write(data, self._pending_changes[survivors].at, torn_write, rng)
        return bytes(data)


def _tear_write(data: bytearray, at: int, written: bytes, rng: random.Random) -> None:
    """Apply a torn write: a prefix of it, and maybe zeros or garbage."""
    length = rng.randint(0, len(written))
    rest = len(written) - length
    remaining = written[:length]
    match rng.choice(("nothing", "nothing else", "zeros", "garbage")):
        case "nothing":
            remaining = b""
        case "zeros":  # the file has the new size already
            remaining += bytes(rest)
        case "garbage":
            block_remainder = BLOCK_BYTES - (at + length) % BLOCK_BYTES
            remaining += rng.randbytes(min(rest, block_remainder))
    if remaining:
        data += bytes(max(0, at - len(data)))
        data[at : at + len(remaining)] = remaining


_FIRST_DESCRIPTOR: Final = 1_000_000
"""The first descriptor: so high that it is invalid on the machine."""


@dataclass(eq=False)
class _File:
    volume: DiskVolume
    contents: DiskContents
    names: int = 1
    is_powered_off: bool = False
    lock_owner: int | None = None


@dataclass(eq=False)
class _Folder:
    volume: DiskVolume
    entries: DiskEntries[_File | _Folder] = field(default_factory=DiskEntries)
    is_powered_off: bool = False


@dataclass
class _Open:
    """An open descriptor."""

    node: _File | _Folder
    is_readable: bool
    is_writable: bool


class VirtualDisk:
    """Volumes, folders and files.

    Args:
        rng: decides the state after a power cut.
        record: takes events, with a digest.
        is_dead: whether the caller is a process that has ended, whose calls fail as without power.
    """

    def __init__(
        self,
        rng: random.Random,
        record: Callable[[str, bytes], object] = lambda text, data: None,
        is_dead: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_dead = is_dead
        self._rng = rng
        self._record = record
        self._roots: dict[Path, _Folder] = {}
        self._descriptors: dict[int, _Open] = {}
        self._next_descriptor = _FIRST_DESCRIPTOR
        self.is_off = False
        """Whether the power is off: only descriptors opened before can be read."""
        self.add_volume(Path("/"))

    # Volumes.

    def add_volume(self, path: DiskPath) -> DiskVolume:
        """Make a folder a volume, if it isn't one."""
        path = _absolute(path)
        if path not in self._roots:
            self._roots[path] = _Folder(DiskVolume(path))
        return self._roots[path].volume

    def volume(self, path: DiskPath) -> DiskVolume:
        """Return the volume of a path."""
        return self._find_volume(_absolute(path))[1].volume

    def cut_power(self, path: DiskPath) -> None:
        """Cut the power of a volume, and restore it.

        Args:
            path: the volume's mount point.
        """
        path = _absolute(path)
        root = self._roots[path]
        volume = root.volume
        before_bytes = volume.used_bytes
        for opened in self._descriptors.values():
            if opened.node.volume is volume:
                opened.node.is_powered_off = True
                if isinstance(opened.node, _File):
                    opened.node.lock_owner = None
        volume.used_bytes = 0
        digest = hashlib.blake2b(digest_size=8)
        self._roots[path] = self._recover_folder(root, {}, digest)
        text = f"power cut on {path}: {volume.used_bytes} of {before_bytes} bytes are left"
        self._record(text, digest.digest())

    def cut_all_power(self) -> None:
        """Cut the power of all volumes at once, until `restore_power`."""
        for path in list(self._roots):
            self.cut_power(path)
        self.is_off = True

    def restore_power(self) -> None:
        """Restore the power. Idempotent."""
        self.is_off = False

    def _recover_folder(
        self, folder: _Folder, files: dict[int, _File], digest: hashlib.blake2b
    ) -> _Folder:
        remaining: dict[str, _File | _Folder] = {}
        for name, node in folder.entries.recover_from_power_cut(self._rng).items():
            digest.update(f"{name}/".encode())
            if isinstance(node, _Folder):
                remaining[name] = self._recover_folder(node, files, digest)
                continue
            if id(node) in files:  # the file has two names
                files[id(node)].names += 1
            else:
                data = node.contents.recover_from_power_cut(self._rng)
                digest.update(data)
                files[id(node)] = _File(folder.volume, DiskContents(data))
                folder.volume.used_bytes += len(data)
            remaining[name] = files[id(node)]
        return _Folder(folder.volume, DiskEntries(remaining))

    # Whole files.

    def read_bytes(self, path: DiskPath) -> bytes:
        """Return the bytes of a file.

        Raises:
            FileNotFoundError: there is none.
        """
        descriptor = self.open(_absolute(path), os.O_RDONLY)
        try:
            return self.pread(descriptor, self.size_of(descriptor), 0)
        finally:
            self.close(descriptor)

    def write_bytes(self, path: DiskPath, data: bytes, *, append: bool = False) -> None:
        """Write a file, or append to it; a crash may lose the bytes until `sync`.

        Raises:
            OSError: the disk is full.
        """
        flags = os.O_RDWR | os.O_CREAT
        descriptor = self.open(_absolute(path), flags if append else flags | os.O_TRUNC)
        try:
            written = self.pwrite(descriptor, data, self.size_of(descriptor) if append else 0)
            if written < len(data):
                raise _error(errno.ENOSPC, _absolute(path))
        finally:
            self.close(descriptor)

    def sync(self, path: DiskPath) -> None:
        """Force a file, and its name, onto the disk.

        Raises:
            FileNotFoundError: there is none.
        """
        file = _absolute(path)
        for forced, flags in ((file, os.O_RDWR), (file.parent, os.O_RDONLY)):
            descriptor = self.open(forced, flags)
            self.fsync(descriptor)
            self.close(descriptor)

    # Descriptors.

    def open(self, path: DiskPath, flags: int, mode: int = 0o777) -> int:
        """Open a file, and return its descriptor; a folder can be opened for `fsync`."""
        path = _absolute(path)
        folder, node = self._find_node(path)
        is_writable = flags & (os.O_WRONLY | os.O_RDWR) != 0
        if node is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, path)
            node = _File(folder.volume, DiskContents())
            self._add(folder, path, node)
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise _error(errno.EEXIST, path)
        elif isinstance(node, _Folder):
            if is_writable or flags & os.O_CREAT:
                raise _error(errno.EISDIR, path)
        elif flags & os.O_TRUNC:
            self._cut(node, 0)
        descriptor = self._next_descriptor
        self._next_descriptor += 1
        self._descriptors[descriptor] = _Open(node, flags & os.O_WRONLY == 0, is_writable)
        return descriptor

    def close(self, descriptor: int) -> None:
        """Close the descriptor, and release its lock."""
        node = self._opened(descriptor).node
        del self._descriptors[descriptor]
        if isinstance(node, _File) and node.lock_owner == descriptor:
            node.lock_owner = None

    def pread(self, descriptor: int, length: int, at: int) -> bytes:
        """Return the bytes, fewer at the end of the file."""
        file = self._file(descriptor)
        if not self._opened(descriptor).is_readable:
            raise _error(errno.EBADF)
        if length < 0 or at < 0:
            raise _error(errno.EINVAL)
        return file.contents.read(at, length)

    def pwrite(self, descriptor: int, data: bytes, at: int) -> int:
        """Write as many bytes as the space allows, and return their number."""
        file = self._file_to_write(descriptor)
        if at < 0:
            raise _error(errno.EINVAL)
        if file.names:
            before = len(file.contents)
            growth = max(0, at + len(data) - before)
            missing_bytes = growth - file.volume.usage.free_bytes
            if missing_bytes > 0:
                data = data[: max(0, len(data) - missing_bytes)]
                if not data:
                    raise _error(errno.ENOSPC)
            file.volume.used_bytes += max(0, at + len(data) - before) if data else 0
        if data:
            file.contents.write(at, data)
        return len(data)

    def ftruncate(self, descriptor: int, length: int) -> None:
        """Truncate the file, or extend it with zeros."""
        file = self._file_to_write(descriptor, errno.EINVAL)
        if length < 0:
            raise _error(errno.EINVAL)
        if file.names and length - len(file.contents) > file.volume.usage.free_bytes:
            raise _error(errno.ENOSPC)
        self._cut(file, length)

    def fsync(self, descriptor: int) -> None:
        """Force the file onto the disk, or the entries of a folder."""
        node = self._opened(descriptor).node
        if node.is_powered_off or self.is_off or self._is_dead():
            raise _error(errno.EIO)
        if isinstance(node, _File):
            node.contents.force()
        else:
            node.entries.force()

    def fdatasync(self, descriptor: int) -> None:
        """Force the contents of the file onto the disk, with its size."""
        self.fsync(descriptor)

    def size_of(self, descriptor: int) -> int:
        """Return how many bytes the file has."""
        return len(self._file(descriptor).contents)

    def lock(self, descriptor: int) -> None:
        """Lock the file until it is closed; fail at once if another descriptor has the lock."""
        file = self._file(descriptor)
        if self._is_dead():
            raise _error(errno.EIO)
        if file.lock_owner not in (None, descriptor):
            raise _error(errno.EAGAIN)
        file.lock_owner = descriptor

    # Names.

    def replace(self, old: DiskPath, new: DiskPath) -> None:
        """Rename a file within its folder, replacing another one."""
        old, new = _absolute(old), _absolute(new)
        folder, file = self._find_node(old)
        other_folder, other = self._find_node(new)
        if file is None:
            raise _error(errno.ENOENT, old)
        if folder is not other_folder or old in self._roots:
            raise _error(errno.EXDEV, new)  # no caller needs it
        if isinstance(file, _Folder):
            raise _error(errno.EISDIR, old)
        if isinstance(other, _Folder):
            raise _error(errno.EISDIR, new)
        if other is file:
            return
        if other is not None:
            self._drop_name(other)
        folder.entries.change({new.name: file, old.name: None})

    def unlink(self, path: DiskPath) -> None:
        """Remove a name of a file."""
        path = _absolute(path)
        folder, file = self._find_node(path)
        if file is None:
            raise _error(errno.ENOENT, path)
        if isinstance(file, _Folder):
            raise _error(errno.EISDIR, path)
        folder.entries.change({path.name: None})
        self._drop_name(file)

    def mkdir(self, path: DiskPath, mode: int = 0o777) -> None:
        """Make a folder."""
        path = _absolute(path)
        folder, node = self._find_node(path)
        if node is not None:
            raise _error(errno.EEXIST, path)
        self._add(folder, path, _Folder(folder.volume))

    def rmdir(self, path: DiskPath) -> None:
        """Remove an empty folder."""
        path = _absolute(path)
        folder, node = self._find_node(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, _File):
            raise _error(errno.ENOTDIR, path)
        if path in self._roots:
            raise _error(errno.EBUSY, path)
        if self.listdir(path):
            raise _error(errno.ENOTEMPTY, path)
        folder.entries.change({path.name: None})

    def listdir(self, path: DiskPath = "/") -> list[str]:
        """Return the names in a folder, in any order."""
        path = _absolute(path)
        node = self._find_node(path)[1]
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, _File):
            raise _error(errno.ENOTDIR, path)
        volumes = [root.name for root in self._roots if root.parent == path and root != path]
        return [*dict.fromkeys([*node.entries, *volumes])]

    def is_folder(self, path: DiskPath) -> bool:
        """Whether there is a folder of that path."""
        try:
            return isinstance(self._find_node(_absolute(path))[1], _Folder)
        except OSError:
            return False

    def disk_usage(self, path: DiskPath) -> DiskUsage:
        """Return the space of a path's volume."""
        return self.volume(path).usage

    # Lookups.

    def _find_volume(self, path: Path) -> tuple[Path, _Folder]:
        for parent in (path, *path.parents):
            if parent in self._roots:
                return parent, self._roots[parent]
        raise _error(errno.ENOENT, path)  # the path is not absolute

    def _find_node(self, path: Path) -> tuple[_Folder, _File | _Folder | None]:
        """Return the folder and the entry of a path; for a volume, its root twice."""
        if self.is_off or self._is_dead():
            raise _error(errno.EIO, path)
        place, root = self._find_volume(path)
        folder, node = root, root
        found: _File | _Folder | None = node
        for name in path.relative_to(place).parts:
            if found is None:
                raise _error(errno.ENOENT, path)
            if isinstance(found, _File):
                raise _error(errno.ENOTDIR, path)
            folder, found = found, found.entries.get(name)
        return folder, found

    def _opened(self, descriptor: int) -> _Open:
        opened = self._descriptors.get(descriptor)
        if opened is None:
            raise _error(errno.EBADF)
        return opened

    def _file(self, descriptor: int) -> _File:
        node = self._opened(descriptor).node
        if isinstance(node, _Folder):
            raise _error(errno.EISDIR)
        return node

    def _file_to_write(self, descriptor: int, error_number: int = errno.EBADF) -> _File:
        if not self._opened(descriptor).is_writable:
            raise _error(error_number)
        file = self._file(descriptor)
        if file.is_powered_off or self.is_off or self._is_dead():
            raise _error(errno.EIO)
        return file

    # Changing.

    def _add(self, folder: _Folder, path: Path, node: _File | _Folder) -> None:
        if folder.volume.is_full:
            raise _error(errno.ENOSPC, path)
        folder.entries.change({path.name: node})

    def _cut(self, file: _File, length: int) -> None:
        if file.names:
            file.volume.used_bytes += length - len(file.contents)
        file.contents.cut(length)

    def _drop_name(self, file: _File) -> None:
        file.names -= 1
        if not file.names:
            file.volume.used_bytes -= len(file.contents)


def _error(number: int, path: Path | None = None) -> OSError:
    return OSError(number, os.strerror(number), *([] if path is None else [str(path)]))
