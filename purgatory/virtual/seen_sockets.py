"""The module ``socket`` as an application in a virtual world sees it: addresses, and no system's.

Ground rules: only the thread that entered a world touches it.
"""

from __future__ import annotations

import socket
from typing import Any, NoReturn

from purgatory.virtual.errors import LeavingWorldError
from purgatory.virtual.virtual_loop import resolved
from purgatory.virtual.virtual_socket import Ports, VirtualSocket


class SeenSockets:
    """Exchanges what makes sockets and finds addresses, between `begin` and `end`.

    Args:
        ports: of the world.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._before: dict[str, Any] = {}

    def begin(self) -> None:
        """Have sockets hold the world's addresses."""
        ports = self._ports

        class WorldSocket(VirtualSocket):
            def __init__(self, *kind: Any, **named: Any) -> None:
                super().__init__(ports, *kind)

        exchanged = {"socket": WorldSocket, "getaddrinfo": _found, "socketpair": _refuse_pair}
        for name, stand_in in exchanged.items():
            self._before[name] = getattr(socket, name)
            setattr(socket, name, stand_in)

    def end(self) -> None:
        """Have them be what they were. Again: no effect."""
        for name, what in self._before.items():
            setattr(socket, name, what)
        self._before.clear()


def _found(host: Any, port: Any, *hints: Any, **named: Any) -> list[Any]:
    return resolved(host, port)


def _refuse_pair(*ignored: Any, **named: Any) -> NoReturn:
    raise LeavingWorldError(
        "asyncio.run() and new_event_loop() would make an event loop of their own: a virtual world "
        "has one, on which world.run(coroutine) runs"
    )
