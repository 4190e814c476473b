"""The disk in memory: calls behave as on a real disk, and power cuts keep the forced data."""

from __future__ import annotations

import errno
import itertools
import os
import random
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.cluster.storage import REAL_DISK, Disk
from purgatory.cluster.storage.disk import (
    list_paths,
    make_folder,
    read_file,
    remove_folder,
    replace_file,
    write_file,
)
from purgatory.virtual import WorldError
from purgatory.virtual.disk import VirtualDisk

_PLACE = Path("/disk")
_READ_WRITE = os.O_RDWR | os.O_CREAT
_BLOCK_BYTES = 4096


def _disk(seed: int = 0) -> VirtualDisk:
    disk = VirtualDisk(random.Random(seed))
    disk.mkdir(_PLACE)
    return disk


def _forced(disk: Disk, path: Path) -> None:
    descriptor = disk.open(path, os.O_RDONLY)
    disk.fsync(descriptor)
    disk.close(descriptor)


# ---- calls as on a real disk

_paths = st.sampled_from(["a", "b", "f", "f/a", "f/b", "f/g", "f/g/a"])
_flags = st.sampled_from(
    [
        os.O_RDONLY,
        os.O_RDWR,
        os.O_RDWR | os.O_CREAT,
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
        os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    ]
)
_open_file = st.integers(0, 3)
_at = st.integers(0, 30)
_calls = st.lists(
    st.one_of(
        st.tuples(st.just("open"), _paths, _flags),
        st.tuples(st.just("close"), _open_file),
        st.tuples(st.just("pwrite"), _open_file, st.binary(max_size=20), _at),
        st.tuples(st.just("pread"), _open_file, st.integers(0, 40), _at),
        st.tuples(st.just("ftruncate"), _open_file, _at),
        st.tuples(st.just("fsync"), _open_file),
        st.tuples(st.just("fdatasync"), _open_file),
        st.tuples(st.just("size_of"), _open_file),
        st.tuples(st.just("lock"), _open_file),
        st.tuples(st.just("replace"), _paths, _paths),
        st.tuples(st.just("unlink"), _paths),
        st.tuples(st.just("mkdir"), _paths),
        st.tuples(st.just("rmdir"), _paths),
        st.tuples(st.just("listdir"), _paths),
        st.tuples(st.just("is_folder"), _paths),
    ),
    max_size=25,
)


_FIRST_CALLS = (
    ("mkdir", "f"),
    ("open", "a", os.O_RDWR | os.O_CREAT),
    ("open", "f/a", os.O_WRONLY | os.O_CREAT),
    ("open", "f", os.O_RDONLY),
    ("pwrite", 0, b"first", 0),
)
_OF_FILES = ("replace", "size_of", "lock")
"""The calls that are not made with folders."""


class _Caller:
    """Makes calls to a disk, and returns the outcome of each."""

    def __init__(self, disk: Disk, place: Path) -> None:
        self.disk, self.place = disk, place
        self.open: list[int] = []

    def call(self, name: str, *arguments: object) -> object:
        first, *others = arguments
        if isinstance(first, str):
            given = [self.place / one if isinstance(one, str) else one for one in arguments]
        elif not self.open:
            return None
        else:
            assert isinstance(first, int)
            descriptor = self.open[first % len(self.open)]
            if name == "close":
                self.open.remove(descriptor)
            given = [descriptor, *others]
        try:
            result = getattr(self.disk, name)(*given)
        except OSError as error:
            return error.errno
        if name == "open":
            self.open.append(result)
            return "opened"
        return sorted(result) if name == "listdir" else result

    def has_folder(self, arguments: Sequence[object]) -> bool:
        """Whether one of the arguments is a path or a descriptor of a folder."""
        for one in arguments:
            if isinstance(one, str) and self.disk.is_folder(self.place / one):
                return True
        first = arguments[0]
        if not isinstance(first, int) or not self.open:
            return False
        return stat.S_ISDIR(os.fstat(self.open[first % len(self.open)]).st_mode)

    def end(self) -> None:
        for descriptor in self.open:
            self.disk.close(descriptor)


def _is_between_folders(call: tuple[object, ...]) -> bool:
    """Whether a call would move a file to another folder, which no caller needs."""
    return call[0] == "replace" and os.path.dirname(str(call[1])) != os.path.dirname(str(call[2]))


@given(_calls)
def test_virtual_disk_matches_a_real_one(calls: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        real, virtual = _Caller(REAL_DISK, Path(folder)), _Caller(_disk(), _PLACE)
        for call in (*_FIRST_CALLS, *calls):
            name, *arguments = call
            if _is_between_folders(call) or (real.has_folder(arguments) and name in _OF_FILES):
                continue
            assert virtual.call(str(name), *arguments) == real.call(str(name), *arguments), call
        real.end()
        virtual.end()


def test_virtual_and_real_disks_have_the_same_files_and_folders(tmp_path: Path) -> None:
    found = []
    for disk, place in ((REAL_DISK, tmp_path), (_disk(), _PLACE)):
        make_folder(disk, place / "a" / "b")
        make_folder(disk, place / "a" / "b")
        write_file(disk, place / "a" / "b" / "two", [b"x" * 200_000, b"y"], True)
        replace_file(disk, place / "a" / "one", b"1", False)
        replace_file(disk, place / "a" / "one", b"2", True)
        with pytest.raises(FileExistsError):
            make_folder(disk, place / "a" / "one")
        before = [path.name for path in list_paths(disk, place / "a")]
        data = read_file(disk, place / "a" / "b" / "two"), read_file(disk, place / "a" / "one")
        remove_folder(disk, place / "a")
        remove_folder(disk, place / "a")
        assert not disk.is_folder(place / "a")
        found.append((before, data, list_paths(disk, place / "a")))
    assert found[0] == found[1]
    assert found[0][0] == ["b", "one"]


# ---- power cuts

_writes = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 40), st.binary(min_size=1, max_size=30)),
        st.tuples(st.just("cut"), st.integers(0, 40)),
        st.tuples(st.just("force")),
    ),
    max_size=12,
)


def _may_be(left: bytes, states: list[bytes], writes: list[tuple[int, bytes] | None]) -> bool:
    """Whether the rest is a state since the last force, or one followed by a torn write."""
    if left in states:
        return True
    for state, write in zip(states, writes, strict=False):
        if write is None:
            continue
        at, data = write
        end = at + len(data)
        untorn = state + bytes(max(0, at - len(state)))
        if len(left) > max(len(untorn), end) or len(left) < len(untorn):
            continue
        # Bytes outside of the write are unchanged. Within, some bytes of the write are followed
        # by garbage of one block, zeros, or the former bytes.
        if left[:at] == untorn[:at] and left[end:] == untorn[end:]:
            return True
    return False


@given(_writes, st.integers(0, 10**6))
def test_power_cut_keeps_a_prefix_of_a_files_changes(
    changes: list[tuple[object, ...]], seed: int
) -> None:
    disk = _disk(seed)
    path = _PLACE / "file"
    file = disk.open(path, _READ_WRITE)
    _forced(disk, _PLACE)
    _forced(disk, Path("/"))
    data = b""
    states, writes = [b""], list[tuple[int, bytes] | None]()
    for change in changes:
        match change:
            case ("write", int(at), bytes(written)):
                disk.pwrite(file, written, at)
                data = data + bytes(max(0, at - len(data)))
                writes.append((at, written))
                data = data[:at] + written + data[at + len(written) :]
                states.append(data)
            case ("cut", int(length)):
                disk.ftruncate(file, length)
                was_longer = length <= len(data)
                writes.append(None if was_longer else (len(data), bytes(length - len(data))))
                data = (data + bytes(max(0, length - len(data))))[:length]
                states.append(data)
            case _:
                disk.fdatasync(file)
                states, writes = [data], []
    disk.cut_power(Path("/"))
    left = read_file(disk, path)
    assert _may_be(left, states, writes), (left, states)
    assert disk.volume(path).used_bytes == len(left)
    assert disk.pread(file, 1_000, 0) == data, "an open descriptor still reads the old data"
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        disk.pwrite(file, b"x", 0)
    disk.close(file)
    disk.cut_power(Path("/"))
    assert read_file(disk, path) == left, "a second power cut changes nothing"


_NAMES = {"a": 0, "a.new": 0, "b": 1, "c": 2}
"""Names with their groups, within which they may be exchanged."""
_entries = st.lists(
    st.one_of(
        st.tuples(st.just("make"), st.sampled_from(sorted(_NAMES))),
        st.tuples(st.just("remove"), st.sampled_from(sorted(_NAMES))),
        st.tuples(st.just("exchange")),
        st.tuples(st.just("force")),
    ),
    max_size=14,
)


@given(_entries, st.integers(0, 10**6))
def test_power_cut_keeps_old_or_new_entries_of_a_folder(
    changes: list[tuple[str, ...]], seed: int
) -> None:
    disk = _disk(seed)
    folder = _PLACE / "folder"
    disk.mkdir(folder)
    _forced(disk, _PLACE)
    _forced(disk, Path("/"))
    now: dict[str, int] = {}
    contents: dict[int, bytes] = {}

    def of_group(group: int) -> dict[str, int]:
        return {name: file for name, file in now.items() if _NAMES[name] == group}

    # The allowed states of each group of names: all since the folder was forced.
    may_be: dict[int, list[dict[str, int]]] = {group: [{}] for group in _NAMES.values()}
    were_exchanged = False
    for number, change in enumerate(changes):
        match change:
            case ("make", name):
                write_file(disk, folder / name, [b"%d" % number], True)
                contents[now.setdefault(name, number)] = b"%d" % number
            case ("remove", name) if name in now:
                disk.unlink(folder / name)
                del now[name]
            case ("exchange",) if "a.new" in now:
                disk.replace(folder / "a.new", folder / "a")
                now["a"] = now.pop("a.new")
                were_exchanged = True
            case ("force",):
                _forced(disk, folder)
                may_be = {group: [] for group in may_be}
                were_exchanged = False
        for group, states in may_be.items():
            states.append(of_group(group))
    disk.cut_power(Path("/"))
    left = {path.name: read_file(disk, path) for path in list_paths(disk, folder)}
    for group, states in may_be.items():
        allowed = [{name: contents[file] for name, file in state.items()} for state in states]
        if were_exchanged:
            found = {name: data for name, data in left.items() if _NAMES[name] == group}
            assert found in allowed, (left, allowed)
        for name in (one for one in _NAMES if _NAMES[one] == group):
            assert left.get(name) in [state.get(name) for state in allowed], (left, allowed)
    assert disk.volume(folder).used_bytes == sum(map(len, left.values()))


def test_unsynced_folder_may_be_lost_with_its_files() -> None:
    found = set()
    for seed in range(40):
        disk = _disk(seed)
        _forced(disk, Path("/"))
        write_file(disk, _PLACE / "file", [b"x"], True)
        make_folder(disk, _PLACE / "folder")
        write_file(disk, _PLACE / "folder" / "file", [b"x"], True)
        disk.cut_power(Path("/"))
        folder = disk.is_folder(_PLACE / "folder")
        found.add((len(list_paths(disk, _PLACE)), folder, len(list_paths(disk, _PLACE / "folder"))))
    assert found == {
        (0, False, 0),
        (1, False, 0),
        (1, True, 0),
        (2, True, 0),
        (1, True, 1),
        (2, True, 1),
    }


def test_torn_write_takes_each_of_its_forms() -> None:
    data = bytes(range(1, 251)) * 40
    forms = set()
    for seed in range(300):
        disk = _disk(seed)
        path = _PLACE / "file"
        write_file(disk, path, [b"forced"], True)
        for folder in (_PLACE, Path("/")):
            _forced(disk, folder)
        file = disk.open(path, os.O_RDWR)
        disk.pwrite(file, data, 6)
        disk.close(file)
        disk.cut_power(Path("/"))
        left = read_file(disk, path)
        assert left.startswith(b"forced")
        pairs = zip(left[6:], data, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        rest = left[6 + same :]
        if not rest:
            forms.add("nothing" if not same else "all" if same == len(data) else "some")
        elif not any(rest):
            forms.add("zeros")
        else:
            forms.add("garbage")
            assert len(rest) <= _BLOCK_BYTES
    assert forms == {"nothing", "some", "all", "zeros", "garbage"}


def test_seed_determines_the_state_after_a_power_cut() -> None:
    def left(seed: int) -> list[bytes]:
        disk = _disk(seed)
        _forced(disk, Path("/"))
        for number in range(20):
            write_file(disk, _PLACE / f"{number}", [random.Random(1).randbytes(5_000)], False)
        disk.cut_power(Path("/"))
        return [read_file(disk, path) for path in list_paths(disk, _PLACE)]

    assert left(1) == left(1)
    assert left(1) != left(2)


# ---- volumes, and how they fill up


def test_volume_fills_up_and_has_space_again() -> None:
    disk = _disk()
    volume = disk.add_volume(_PLACE / "broker-1")
    path = _PLACE / "broker-1" / "file"
    file = disk.open(path, _READ_WRITE)
    disk.pwrite(file, b"x" * 100, 0)
    volume.fill(after_bytes=50)
    assert disk.pwrite(file, b"y" * 80, 100) == 50, "only 50 bytes fit"
    for refused in (
        lambda: disk.pwrite(file, b"y", 150),
        lambda: disk.ftruncate(file, 151),
        lambda: disk.open(path.with_name("other"), _READ_WRITE),
        lambda: disk.mkdir(path.with_name("folder")),
    ):
        with pytest.raises(OSError, match="No space left on device"):
            refused()
    assert disk.pwrite(file, b"z" * 10, 0) == 10, "a write in place needs no space"
    assert disk.disk_usage(path) == (150, 0)
    write_file(disk, _PLACE / "elsewhere", [b"x"], True)
    disk.ftruncate(file, 100)
    assert disk.pwrite(file, b"y" * 80, 100) == 50
    volume.remove_limit()
    assert disk.pwrite(file, b"y" * 80, 150) == 80
    disk.unlink(path)
    assert volume.used_bytes == 0
    disk.pwrite(file, b"y" * 80, 150)
    assert volume.used_bytes == 0, "an unlinked file takes no space"
    with pytest.raises(WorldError, match="at least 0"):
        volume.fill(-1)


def test_write_bytes_raises_if_the_disk_fills_up() -> None:
    disk = _disk()
    disk.volume(Path("/")).fill(after_bytes=10)
    with pytest.raises(OSError, match="No space left on device: '/file'"):
        disk.write_bytes("file", b"x" * 100)
    assert disk.read_bytes("file") == b"x" * 10, "the beginning is kept, as in a file system"
    with pytest.raises(OSError, match="No space left on device"):
        disk.write_bytes("file", b"x", append=True)


def test_power_cut_of_a_volume_leaves_others_unchanged() -> None:
    gone = 0
    for seed in range(20):
        disk = _disk(seed)
        disk.add_volume(_PLACE / "broker-1")
        for folder in ("broker-1", "."):
            write_file(disk, _PLACE / folder / "file", [b"x" * 100], False)
        disk.cut_power(_PLACE / "broker-1")
        gone += not list_paths(disk, _PLACE / "broker-1")
        assert read_file(disk, _PLACE / "file") == b"x" * 100
        assert disk.listdir(_PLACE) == ["file", "broker-1"]
    assert 0 < gone < 20
    for refused in (disk.rmdir, disk.unlink, disk.mkdir):
        with pytest.raises(OSError, match=r"busy|directory|exists"):
            refused(_PLACE / "broker-1")


def test_disk_without_power_refuses_all_calls() -> None:
    disk = _disk()
    make_folder(disk, _PLACE)
    write_file(disk, _PLACE / "file", [b"x"], True)
    for folder in (_PLACE, Path("/")):
        _forced(disk, folder)
    file = disk.open(_PLACE / "file", os.O_RDWR)
    disk.cut_all_power()
    calls: list[Callable[[], object]] = [
        lambda: read_file(disk, _PLACE / "file"),
        lambda: disk.unlink(_PLACE / "file"),
        lambda: disk.listdir(_PLACE),
        lambda: disk.fsync(file),
        lambda: disk.ftruncate(file, 0),
    ]
    for call in calls:
        with pytest.raises(OSError, match="Input/output error"):
            call()
    disk.close(file)
    disk.restore_power()
    assert read_file(disk, _PLACE / "file") == b"x"


def test_power_cut_releases_locks() -> None:
    disk = _disk()
    first, second = (disk.open(_PLACE / "lock", _READ_WRITE) for _ in range(2))
    disk.lock(first)
    with pytest.raises(BlockingIOError):
        disk.lock(second)
    disk.close(first)
    disk.lock(second)
    disk.cut_power(Path("/"))
    make_folder(disk, _PLACE)
    disk.lock(disk.open(_PLACE / "lock", _READ_WRITE))


_SPELLINGS: Sequence[Callable[[str], str | bytes | os.PathLike[str]]] = [
    str,
    Path,
    PurePosixPath,
    os.fsencode,
    "/{}".format,
    "./{}".format,
    "x/..//{}".format,
    "../{}".format,
]


@pytest.mark.parametrize("spelled", _SPELLINGS)
def test_path_is_taken_as_os_takes_it(
    spelled: Callable[[str], str | bytes | os.PathLike[str]],
) -> None:
    disk = VirtualDisk(random.Random(0))
    disk.mkdir(spelled("f"))
    assert disk.is_folder(spelled("f"))
    disk.write_bytes(spelled("f/a"), b"data")
    disk.sync(spelled("f/a"))
    disk.replace(spelled("f/a"), spelled("f/b"))
    assert disk.listdir(spelled("f")) == ["b"]
    assert disk.read_bytes(spelled("f/b")) == disk.read_bytes(Path("/f/b")) == b"data"
    disk.close(disk.open(spelled("f/b"), os.O_RDONLY))
    assert disk.add_volume(spelled("v")) is disk.volume(spelled("v/any"))
    assert disk.disk_usage(spelled("v")) == disk.disk_usage(Path("/v"))
    disk.cut_power(spelled("v"))
    disk.unlink(spelled("f/b"))
    disk.rmdir(spelled("f"))
    assert disk.listdir() == ["v"]


def test_invalid_path_is_refused_as_os_refuses_it() -> None:
    disk = VirtualDisk(random.Random(0))
    for call in (disk.mkdir, disk.unlink, disk.rmdir, disk.listdir, disk.read_bytes, disk.sync):
        with pytest.raises(FileNotFoundError):
            call("")
        with pytest.raises(TypeError):
            call(5)  # type: ignore[arg-type]
