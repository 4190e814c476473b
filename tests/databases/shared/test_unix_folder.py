"""`UnixRelay` on other file systems and systems: coarse timestamps, full disks, small datagrams."""

from __future__ import annotations

import ast
import asyncio
import errno
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from purgatory.shared import RelayError, SharedPurgatory
from purgatory.shared import unix_relay as module
from purgatory.shared.unix_relay import UnixRelay
from tests.databases.shared.store import HOUR_S, Store, eventually, in_time, on_loop

ROOT = Path(__file__).parents[3]


def purgatory(folder: Path, store: Store) -> SharedPurgatory:
    return SharedPurgatory("Fetch", UnixRelay(folder), store.read, HOUR_S)


@pytest.mark.parametrize("ago_s", [0.2, 0.9])
@on_loop
async def test_worker_that_joins_within_a_coarse_tick_is_heard(
    tmp_path: Path, ago_s: float
) -> None:
    folder, store = tmp_path / "s", Store()
    tick_ns = (time.time_ns() - int(ago_s * 1e9),) * 2
    async with purgatory(folder, store) as sender:
        os.utime(folder, ns=tick_ns)
        await sender.advance("k", 1)  # it looks who is there
        await eventually(lambda: sender.relay.counts.sent == 1, "sent")
        async with purgatory(folder, store) as one:
            os.utime(folder, ns=tick_ns)  # of a clock that has not moved since
            wait = asyncio.create_task(one.wait_for_threshold("k", 1, 60))
            await eventually(lambda: store.has_read("k"), "read")
            await sender.advance("k", 2)
            assert await in_time(wait) == 2


@on_loop
async def test_folder_is_listed_once_after_the_longest_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, now_s, listed, inner = tmp_path / "s", 0.0, 0, os.listdir

    def listdir(path: Any) -> list[str]:
        nonlocal listed
        listed += 1
        return inner(path)

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    async with purgatory(folder, Store()) as sender:
        monkeypatch.setattr(os, "listdir", listdir)
        relay: Any = sender.relay
        for at_s, expected in ((0.0, 1), (1.9, 2), (2.0, 3), (2.1, 3), (1_000.0, 3)):
            now_s = at_s
            relay._find_others()
            assert listed == expected
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.bind(os.fspath(folder / "1-other.sock"))
            relay._find_others()
            assert relay._others.keys() == {"1-other.sock"}


@on_loop
async def test_relay_needs_no_option_of_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(socket, "SOCK_NONBLOCK")
    monkeypatch.delattr(socket, "SOCK_CLOEXEC")
    folder, store = tmp_path / "s", Store()
    async with purgatory(folder, store) as one, purgatory(folder, store) as other:
        wait = asyncio.create_task(one.wait_for_threshold("k", 1, 60))
        await eventually(lambda: store.has_read("k"), "read")
        assert one.relay.state.name == "live"
        await other.advance("k", 1)
        assert await in_time(wait) == 1


class SmallSocket:
    """A socket that refuses datagrams of more than some bytes, as macOS does."""

    def __init__(self, inner: socket.socket, most_bytes: int) -> None:
        self.inner = inner
        self.most_bytes = most_bytes

    def sendto(self, data: bytes, path: str) -> int:
        if len(data) > self.most_bytes:
            raise OSError(errno.EMSGSIZE, "Message too long")
        return self.inner.sendto(data, path)


@on_loop
async def test_many_numbers_fit_the_small_datagrams_of_a_system(tmp_path: Path) -> None:
    folder, store = tmp_path / "s", Store()
    async with purgatory(folder, store) as one, purgatory(folder, store) as other:
        keys = [f"key {number}" for number in range(500)]
        waits = [asyncio.create_task(one.wait_for_threshold(key, 1, 60)) for key in keys]
        await eventually(lambda: store.has_read(*keys), "read")
        relay: Any = other.relay
        own = relay._socket
        relay._socket = SmallSocket(own, 2_000)
        relay.publish({f"Fetch:{key}": 1 for key in keys})
        assert await in_time(asyncio.gather(*waits)) == [1] * 500
        assert relay._others
        relay._socket = own


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EIO])
@on_loop
async def test_worker_starts_on_a_full_disk_and_hears_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    is_full = True

    class FullSocket(socket.socket):
        def bind(self, address: Any) -> None:
            if is_full and isinstance(address, str):
                raise OSError(number, os.strerror(number))
            super().bind(address)

    monkeypatch.setattr(socket, "socket", FullSocket)
    folder, store = tmp_path / "s", Store(k=1)
    async with purgatory(folder, store) as one, purgatory(folder, store) as other:
        assert one.relay.state.name == "deaf"
        error = one.relay.state.error
        assert isinstance(error, OSError)
        assert error.errno == number
        assert await in_time(one.wait_for_threshold("k", 1)) == 1
        is_full = False
        for shared in (one, other):
            await eventually(lambda shared=shared: shared.relay.state.name == "live", "live")  # type: ignore[misc]
        wait = asyncio.create_task(one.wait_for_threshold("later", 1, 60))
        await eventually(lambda: store.has_read("later"), "read")
        await other.advance("later", 1)
        assert await in_time(wait) == 1


@on_loop
async def test_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("")
    with pytest.raises(RelayError, match="needs a folder in which it can make a socket"):
        await purgatory(tmp_path / "s", Store()).__aenter__()


_LINUX_ALONE = {
    *("socket.SOCK_NONBLOCK", "socket.SOCK_CLOEXEC", "socket.MSG_NOSIGNAL", "select.epoll"),
    *("os.pipe2", "os.eventfd", "os.memfd_create", "os.sched_getaffinity", "os.posix_fallocate"),
    *("os.posix_fadvise", "os.fdatasync", "os.accept4", "signal.sigtimedwait", "os.O_DIRECT"),
    *("signal.sigwaitinfo", "socket.TCP_USER_TIMEOUT", "time.CLOCK_BOOTTIME", "os.O_TMPFILE"),
}
"""Names that Python has on Linux, and not on macOS."""


def test_product_names_nothing_that_macos_lacks() -> None:
    found = []
    for path in [*(ROOT / "purgatory").rglob("*.py"), *(ROOT / "timer").rglob("*.py")]:
        text = path.read_text()
        if any(name.partition(".")[2] in text for name in _LINUX_ALONE):
            found += [
                f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Attribute) and ast.unparse(node) in _LINUX_ALONE
            ]
    assert found == []
