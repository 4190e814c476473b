"""A server in a virtual world: whom connections to an address reach.

Ground rules: only the world's own thread touches it.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Callable
from typing import Any

from purgatory.virtual.virtual_socket import Address, Ports, VirtualSocket
from purgatory.virtual.virtual_transport import VirtualTransport

_WAITS_FOR_CONNECTIONS = sys.version_info >= (3, 12, 1)


class VirtualServer(asyncio.AbstractServer):
    """Listens at some addresses.

    Args:
        loop: the world's.
        ports: the world's.
        addresses: that it has taken.
        new_protocol: makes the protocol of a connection.
        tls: what it speaks TLS with.
        timeouts_s: of TLS: for the handshake, and for the shutdown; None for asyncio's.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ports: Ports,
        addresses: list[Address],
        new_protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        timeouts_s: tuple[float | None, float | None],
    ) -> None:
        self.new_protocol = new_protocol
        self.tls = tls
        self.timeouts_s = timeouts_s
        self.accepts = False
        self._loop = loop
        self._ports = ports
        self._addresses = addresses
        self._closed = False
        self._connections: dict[int, VirtualTransport] = {}
        self._all_gone: list[asyncio.Future[None]] = []
        self._serving_forever: asyncio.Future[None] | None = None

    @property
    def sockets(self) -> tuple[Any, ...]:
        """What stands for its sockets; none once it is closed."""
        if self._closed:
            return ()
        return tuple(
            VirtualSocket(self._ports, address=one, on_removed=self._accept_nobody)
            for one in self._addresses
        )

    def add(self, transport: VirtualTransport) -> None:
        """Count a connection."""
        self._connections[id(transport)] = transport

    def remove(self, transport: VirtualTransport) -> None:
        """Count it no more."""
        self._connections.pop(id(transport), None)
        self._tell_if_all_gone()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self.accepts

    async def start_serving(self) -> None:
        if not self._closed:
            self.accepts = True
        await asyncio.sleep(0)

    async def serve_forever(self) -> None:
        if self._serving_forever is not None:
            raise RuntimeError(f"server {self!r} is already being awaited on serve_forever()")
        if self._closed:
            raise RuntimeError(f"server {self!r} is closed")
        self.accepts = True
        self._serving_forever = self._loop.create_future()
        try:
            await self._serving_forever
        except asyncio.CancelledError:
            self.close()
            await self.wait_closed()
            raise
        finally:
            self._serving_forever = None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.accepts = False
        for address in self._addresses:
            self._ports.give_back(address, self)
        if self._serving_forever is not None and not self._serving_forever.done():
            self._serving_forever.cancel()
        self._tell_if_all_gone()

    def close_clients(self) -> None:
        """Close all connections."""
        for transport in list(self._connections.values()):
            transport.close()

    def abort_clients(self) -> None:
        """Break all connections."""
        for transport in list(self._connections.values()):
            transport.abort()

    async def wait_closed(self) -> None:
        if self._closed and not (self._connections and _WAITS_FOR_CONNECTIONS):
            return
        gone = self._loop.create_future()
        self._all_gone.append(gone)
        await gone

    def _accept_nobody(self) -> None:
        self.accepts = False

    def _tell_if_all_gone(self) -> None:
        if self._closed and not self._connections:
            waiting, self._all_gone = self._all_gone, []
            for gone in waiting:
                if not gone.done():
                    gone.set_result(None)
