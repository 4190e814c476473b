"""The module ``socket`` as an application in a virtual world sees it: addresses, and no system's.

Ground rules
------------
* Only the thread that entered a world sees it. Others, and whoever kept a reference when the world
  ended, get the system's.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio import events, runners
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any, NoReturn

from purgatory.virtual.connecting_loop import resolved
from purgatory.virtual.errors import LeavingWorldError
from purgatory.virtual.virtual_network import NODE, address_of
from purgatory.virtual.virtual_socket import Ports, VirtualSocket

_OWN_LOOP = (
    "asyncio.run() and new_event_loop() would make an event loop of their own: a virtual world has "
    "one, on which world.run(coroutine) runs"
)


class SeenSockets:
    """Exchanges what makes sockets and loops, and finds addresses, between `begin` and `end`.

    Args:
        ports: of the world.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._thread_id = 0
        self._before: list[tuple[Any, str, Any]] = []

    def begin(self) -> None:
        """Have sockets hold the world's addresses."""
        self._thread_id = get_ident()
        self._exchange(socket, "socket", self._socket_class(socket.socket))
        for name, stand_in in _STAND_INS.items():
            if hasattr(socket, name):
                self._exchange(socket, name, self._seen(getattr(socket, name), stand_in))
        for owner, name in (
            (asyncio, "new_event_loop"),
            (events, "new_event_loop"),
            (runners.Runner, "__enter__"),
            (runners.Runner, "run"),
            (runners.Runner, "get_loop"),
        ):
            self._exchange(owner, name, self._seen(getattr(owner, name), _refuse_loop))

    def end(self) -> None:
        """Have them be what they were. Again: no effect."""
        for owner, name, what in self._before:
            setattr(owner, name, what)
        self._thread_id = 0
        self._before.clear()

    def _exchange(self, owner: Any, name: str, stand_in: Any) -> None:
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, stand_in)

    def _seen(self, original: Callable[..., Any], stand_in: Callable[..., Any]) -> Any:
        @wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            chosen = stand_in if get_ident() == self._thread_id else original
            return chosen(*arguments, **named)

        return call

    def _socket_class(self, original: Any) -> Any:
        seen = self

        class WorldSocket(VirtualSocket):
            def __new__(cls, *kind: Any, **named: Any) -> Any:
                if get_ident() != seen._thread_id:
                    return original(*kind, **named)
                return super().__new__(cls)

            def __init__(self, *kind: Any, **named: Any) -> None:
                super().__init__(seen._ports, *kind)

        return WorldSocket


def _found(host: Any, port: Any, *hints: Any, **named: Any) -> list[Any]:
    return resolved(host, port)


def _refuse_pair(*ignored: Any, **named: Any) -> NoReturn:
    raise LeavingWorldError(
        "a pair of sockets was asked for in a virtual world, as an event loop of its own does; a "
        "world has a loop, on which world.run(coroutine) runs, and asyncio's streams"
    )


def _refuse_loop(*ignored: Any, **named: Any) -> NoReturn:
    raise LeavingWorldError(_OWN_LOOP)


def _host_name() -> str:
    return NODE.get()


def _full_name(name: str = "") -> str:
    return name or NODE.get()


def _address(name: str) -> str:
    return address_of(name)


def _address_and_names(name: str) -> tuple[str, list[str], list[str]]:
    return name, [], [address_of(name)]


def _numeric(address: Any, flags: int) -> tuple[str, str]:
    return str(address[0]), str(address[1])


_STAND_INS: dict[str, Callable[..., Any]] = {
    "getaddrinfo": _found,
    "socketpair": _refuse_pair,
    "gethostname": _host_name,
    "getfqdn": _full_name,
    "gethostbyname": _address,
    "gethostbyname_ex": _address_and_names,
    "gethostbyaddr": _address_and_names,
    "getnameinfo": _numeric,
}
"""What is asked of the module `socket`, and what a world answers: nothing of the machine's."""
