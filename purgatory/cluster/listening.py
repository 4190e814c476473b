"""Where a broker listens, and that its ports stay its own while it is dead.

Whoever connects from this machine is given a port to connect from, and it can be any that nobody
has bound: also the one at which a killed broker is to listen again, and to which clients connect
in vain meanwhile (one that is given the port it connects to is even connected to itself).

Ground rules
------------
* Everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from purgatory.cluster.listener import Listener, Place
from purgatory.kafka.errors import ClusterError


class Listening:
    """The servers of one broker.

    Args:
        broker_id: whose.
        places: where it is to listen, by the names of the listeners; at port 0, any that is free.
    """

    def __init__(self, broker_id: int, places: Mapping[str, Place]) -> None:
        self._broker_id = broker_id
        self._places = dict(places)
        self._servers: list[asyncio.Server] = []
        self._kept: list[socket.socket] = []

    def place(self, listener: Listener) -> Place:
        """Return where it listens, or did last, for those who come by a listener."""
        return self._places[listener.name]

    async def start(
        self,
        listeners: Iterable[Listener],
        new_connection: Callable[[Listener], asyncio.BaseProtocol],
        tls: Mapping[str, ssl.SSLContext],
    ) -> None:
        """Listen.

        Args:
            listeners: which ones.
            new_connection: makes the protocol of one that came by a listener.
            tls: by the names of the listeners that speak it.

        Raises:
            ClusterError: it can't listen there.
        """
        self.give_up()
        for listener in listeners:
            await self._listen(listener, new_connection, tls.get(listener.name))

    async def _listen(
        self,
        listener: Listener,
        new_connection: Callable[[Listener], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        host, port = self._places[listener.name]
        create = partial(
            asyncio.get_running_loop().create_server,
            lambda: new_connection(listener),
            host,
            ssl=tls,
            backlog=1024,
            start_serving=False,
        )
        try:
            # Two steps: `stop` closes what it knows, also while this waits for the second one.
            server = await create(port)
            while len(ports := {one.getsockname()[1] for one in server.sockets}) > 1:
                # A name with an address of each family: the system gave each a port of its own.
                server.close()
                try:
                    server = await create(min(ports))
                except OSError:  # somebody has that one at the other address
                    server = await create(port)
            self._servers.append(server)
            self._places[listener.name] = Place(host, *ports)
            await server.start_serving()
        except OSError as error:
            raise ClusterError(
                f"broker {self._broker_id} can't listen on {Place(host, port)}: {error.strerror}"
            ) from error

    async def stop(self) -> None:
        """Accept nobody more, and keep the ports: who connects is refused.

        Whom asyncio has accepted already gets a connection in the next turn, to be turned away:
        once the server is closed it could not make one, and would leave the socket open.
        """
        servers, self._servers = self._servers, []
        bound = [(one.family, one.getsockname()) for server in servers for one in server.sockets]
        for server in servers:
            for listening in server.sockets:
                asyncio.get_running_loop().remove_reader(listening)
        await asyncio.sleep(0)
        for server in servers:
            server.close()
        self._keep(bound)

    def _keep(self, bound: Iterable[tuple[int, Any]]) -> None:
        for family, address in bound:
            kept = socket.socket(family, socket.SOCK_STREAM)
            self._kept.append(kept)
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:  # as asyncio does: the other family has its own
                kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            with contextlib.suppress(OSError):  # somebody was quicker: `start` will say so
                kept.bind(address)

    def give_up(self) -> None:
        """Give up the ports that are kept."""
        while self._kept:
            self._kept.pop().close()
