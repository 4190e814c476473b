"""What stands for a socket in a virtual world: an address that is taken, and nothing more.

Connections are made by the event loop, and their bytes never pass a socket. But programs bind one
to find a free port, ask a server's for its address, and a transport's for its options.

Ground rules: only the world's own thread touches it.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import Any, NoReturn, Self

from purgatory.virtual.errors import LeavingWorldError

Address = tuple[str, int]
_FIRST_PORT = 20_000
_LAST_PORT = 65_535


class Ports:
    """Which addresses are taken."""

    def __init__(self) -> None:
        self._taken: dict[Address, object] = {}
        self._next = _FIRST_PORT

    def take(self, address: Address, by: object) -> Address:
        """Take an address; port 0 is any that is free.

        Raises:
            OSError: it is taken.
        """
        host, port = address
        if port == 0:
            port = self.any_port()
        if (host, port) in self._taken:
            raise OSError(errno.EADDRINUSE, f"{os.strerror(errno.EADDRINUSE)}: {host}:{port}")
        self._taken[host, port] = by
        return host, port

    def give_back(self, address: Address, by: object) -> None:
        """Give up an address. No effect where somebody else has it."""
        if self._taken.get(address) is by:
            del self._taken[address]

    def owner(self, address: Address) -> object:
        """Return who has taken an address, or None."""
        return self._taken.get(address)

    def any_port(self) -> int:
        """Return a port that nobody was given lately."""
        self._next = self._next + 1 if self._next < _LAST_PORT else _FIRST_PORT
        return self._next


class VirtualSocket:
    """An address of the world.

    Args:
        ports: of the world.
        family, kind, protocol: as of a socket.
        address: that it has already.
        peer: to which it is connected.
        on_removed: called when a loop is to look no more whether it can be read.
    """

    def __init__(
        self,
        ports: Ports,
        family: int = socket.AF_INET,
        kind: int = socket.SOCK_STREAM,
        protocol: int = 0,
        address: Address = ("0.0.0.0", 0),
        peer: Address | None = None,
        on_removed: Callable[[], None] | None = None,
    ) -> None:
        self.family = family
        self.type = kind
        self.proto = protocol
        self.on_removed = on_removed
        self._ports = ports
        self._address = address
        self._peer = peer
        self._options: dict[tuple[int, int], Any] = {}
        self._connection: Any = None

    def connected(self, connection: Any, address: Address, peer: Address) -> None:
        """Have a connection, until somebody takes it."""
        self._connection, self._address, self._peer = connection, address, peer

    def take_connection(self) -> Any:
        """Return the connection that it has, once; None where it has none."""
        connection, self._connection = self._connection, None
        return connection

    def bind(self, address: Any) -> None:
        """Take an address; port 0 is any that is free.

        Raises:
            OSError: it is taken.
        """
        self._address = self._ports.take((address[0] or "0.0.0.0", address[1]), self)

    def getsockname(self) -> Address:
        """Return its address."""
        return self._address

    def getpeername(self) -> Address:
        """Return the address to which it is connected.

        Raises:
            OSError: it is not.
        """
        if self._peer is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self._peer

    def setsockopt(self, level: int, option: int, value: Any, *more: Any) -> None:
        """Keep an option, which has no effect."""
        self._options[level, option] = value

    def getsockopt(self, level: int, option: int, *more: Any) -> Any:
        """Return what was set."""
        return self._options.get((level, option), 0)

    def setblocking(self, flag: bool) -> None:
        """Have no effect."""

    def settimeout(self, value: float | None) -> None:
        """Have no effect."""

    def gettimeout(self) -> float | None:
        """Return 0: it never blocks."""
        return 0.0

    def set_inheritable(self, flag: bool) -> None:
        """Have no effect."""

    def listen(self, backlog: int = 0) -> None:
        """Have no effect: an event loop's server listens."""

    def fileno(self) -> int:
        """Return -1: the system does not know it."""
        return -1

    def close(self) -> None:
        """Give up its address, and a connection that nobody took."""
        if self._connection is not None:
            self.take_connection().close()
        self._ports.give_back(self._address, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ignored: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or not hasattr(socket.SocketType, name):
            raise AttributeError(f"a socket of a virtual world has no {name!r}")
        raise LeavingWorldError(
            f"socket.{name}() in a virtual world: a socket there only holds an address. Use "
            "asyncio's open_connection and start_server, or create_connection and create_server"
        )
