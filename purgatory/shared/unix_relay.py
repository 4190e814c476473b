"""A relay for the workers of one machine, without a server: datagrams between Unix sockets.

Each process binds a socket in a folder that all share, and sends to every other socket there. A
process joins by binding and leaves by removing its file; the socket of a process that was killed
refuses messages, and the first sender that finds this removes it.

Messages that do not fit a socket's buffer wait in the sender, the highest number of each key, and
are sent again: a slow process gets fewer messages, never a wrong one.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import socket
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from purgatory.shared.relay import MOST_UNSENT, Relay, RelayError
from timer.machine_time import time

_MOST_BYTES = 32_000
"""Of a datagram: a socket's buffer holds some 200,000."""
_AGAIN_S = 0.005
_LOOK_S = 1.0
_LONGEST_TICK_S = 2.0
"""Of a file system's clock, in which it tells when a folder was changed."""
_MAY_CHANGE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE),
    *(errno.ENOMEM, errno.ENOBUFS, errno.EIO, errno.EAGAIN),
}
"""Errors that may be over the next time a socket is made."""
_NO_ROOM = {errno.ENOBUFS, errno.ENOMEM}
_LONGEST_PATH = 100
"""Bytes; a socket's path may have 107 on Linux, 103 on macOS."""


class UnixRelay(Relay):
    """Datagrams between the processes of one machine that use the same folder.

    Args:
        folder: for the sockets; made if it is not there, for this user alone. A short path: 70
            bytes at most.

    Raises:
        TypeError, ValueError: it is no path, or a long one.

    `attach` raises RelayError if no socket can be made there; it does not if there is no room on
    the disk, or for another file: that may change.

    A relay may be created before a fork. Messages are missed only while its socket is missing from
    the folder, which the relay notices within a second.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self.folder = Path(folder)
        self._folder = os.fspath(self.folder)
        if "\0" in self._folder:
            raise ValueError(f"folder must have no NUL: {self._folder!r}")
        self._path = self._new_path()
        if len(os.fsencode(self._path)) > _LONGEST_PATH:
            raise ValueError(
                f"the folder of a UnixRelay must have a short path, 70 bytes at most: {self.folder}"
            )
        self._socket: socket.socket | None = None
        self._others: dict[str, _Other] = {}
        self._seen = _Seen(-1, 0.0)
        self._is_settled = False

    def __repr__(self) -> str:
        return f"UnixRelay({os.fspath(self.folder)!r})"

    def _new_path(self) -> Path:
        return self.folder / f"{os.getpid()}-{secrets.token_hex(4)}.sock"

    async def listen(self) -> None:
        self._path = self._new_path()
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._socket.bind(os.fspath(self._path))
        except OSError as error:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            if error.errno in _MAY_CHANGE:
                raise
            raise RelayError(
                f"a UnixRelay needs a folder in which it can make a socket: {error}"
            ) from error
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._read, self._socket)
        try:
            self.connected()
            while self._path.exists():
                await asyncio.sleep(_LOOK_S)
            raise ConnectionError(f"its socket was removed from {self.folder}")
        finally:
            loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            self._path.unlink(missing_ok=True)

    def _read(self, own: socket.socket) -> None:
        for _ in range(100):  # then others have their turn
            try:
                datagram = own.recv(_MOST_BYTES * 2)
            except BlockingIOError:
                return
            try:
                for key, number in json.loads(datagram):
                    self.receive(key, number)
            except (ValueError, TypeError, RecursionError):
                continue  # not of a relay

    async def subscribe(self, added: Collection[str], removed: Collection[str]) -> None:
        """All processes get all messages."""

    def publish(self, numbers: Mapping[str, int | None]) -> None:
        self._find_others()
        for name, other in list(self._others.items()):
            if dropped := other.add(numbers):
                self._lost += dropped
                self._observe("lost", dropped)
            if not other.is_sending:
                self._send(name, other)

    def _find_others(self) -> None:
        """Find the other processes, if the folder has changed. O(1) if it has not for 2 s."""
        changed_ns = os.stat(self._folder).st_mtime_ns
        if changed_ns != self._seen.changed_ns:
            self._seen = _Seen(changed_ns, time.monotonic())
        elif self._is_settled:
            return
        # A file system's clock has ticks: within one, another change would look like this one.
        self._is_settled = time.monotonic() >= self._seen.since_s + _LONGEST_TICK_S
        names = {name for name in os.listdir(self.folder) if name.endswith(".sock")}
        names.discard(self._path.name)
        for name in self._others.keys() - names:
            del self._others[name]
        for name in names - self._others.keys():
            with suppress(FileNotFoundError):
                if stat.S_ISSOCK((self.folder / name).stat().st_mode):
                    self._others[name] = _Other(os.path.join(self._folder, name))

    def _send(self, name: str, other: _Other) -> None:
        """Send what waits for another process; once more in a while, if its buffer is full."""
        other.is_sending = False
        while other.unsent and self._socket is not None:
            keys, datagram = other.next_datagram()
            try:
                self._socket.sendto(datagram, other.path)
            except (BlockingIOError, OSError) as error:
                if error.errno == errno.EMSGSIZE and len(keys) > 1:
                    other.most_bytes = len(datagram) // 2  # macOS has room for 2,000
                    continue
                if isinstance(error, BlockingIOError) or error.errno in _NO_ROOM:
                    other.is_sending = True
                    asyncio.get_running_loop().call_later(_AGAIN_S, self._send, name, other)
                    return
                # The process that bound it was killed, or has left.
                self._others.pop(name, None)
                if isinstance(error, ConnectionRefusedError):
                    with suppress(OSError):
                        os.unlink(other.path)
                return
            for key in keys:
                del other.unsent[key]

    async def close(self) -> None:
        self._others.clear()
        self._seen = _Seen(-1, 0.0)


class _Seen(NamedTuple):
    """When the folder was changed, by the file system's clock, and since when that is known."""

    changed_ns: int
    since_s: float


class _Other:
    """Another process: what it has yet to be sent, and whether a timer will do so."""

    __slots__ = ("is_sending", "most_bytes", "path", "unsent")

    def __init__(self, path: str) -> None:
        self.path = path
        self.unsent: dict[str, int | None] = {}
        self.is_sending = False
        self.most_bytes = _MOST_BYTES

    def add(self, numbers: Mapping[str, int | None]) -> int:
        """Return how many of them there is no room for: the process may have stopped for long."""
        dropped = 0
        for key, number in numbers.items():
            waiting = self.unsent.get(key)
            if waiting is None and key not in self.unsent and len(self.unsent) >= MOST_UNSENT:
                dropped += 1
            elif waiting is None or (number is not None and number > waiting):
                self.unsent[key] = number
        return dropped

    def next_datagram(self) -> tuple[list[str], bytes]:
        """Return the first keys that fit a datagram, and it."""
        keys: list[str] = []
        parts: list[str] = []
        size = 2
        for key, number in self.unsent.items():
            part = json.dumps([key, number])
            size += len(part) + 1
            if keys and size > self.most_bytes:
                break
            keys.append(key)
            parts.append(part)
        return keys, f"[{','.join(parts)}]".encode()
