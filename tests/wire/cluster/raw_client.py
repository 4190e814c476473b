"""A client that sends any bytes, and sees the responses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any, Self

from purgatory.cluster import Cluster
from tests.wire.cluster.wire_values import read_response, request_frame

_PATIENCE_S = 60.0


class RawClient:
    """One connection to a broker. ``async with await RawClient.to(cluster)`` closes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._next_id = 0

    @classmethod
    async def to(cls, cluster: Cluster, broker: int = 1, small_buffers: bool = False) -> Self:
        """Connect; with small buffers in between, which are soon full."""
        one = cluster.brokers[broker]
        connection = socket.socket()
        if small_buffers:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (one.host, one.port))
        return cls(*await asyncio.open_connection(sock=connection))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    def send(self, frame: bytes) -> None:
        """Send a request, with its length before it."""
        self.writer.write(len(frame).to_bytes(4, "big") + frame)

    async def receive(self) -> bytes:
        """Return the next answer, without its length."""
        async with asyncio.timeout(_PATIENCE_S):
            length = int.from_bytes(await self.reader.readexactly(4), "big")
            return await self.reader.readexactly(length)

    async def ask(self, api_key: int, version: int, values: Mapping[str, Any] | None = None) -> Any:
        """Send a request, and return the body of its answer."""
        self._next_id += 1
        self.send(request_frame(api_key, version, self._next_id, values))
        correlation_id, body = read_response(api_key, version, await self.receive())
        assert correlation_id == self._next_id
        return body

    async def wait_closed(self) -> bytes:
        """Return the bytes that came before the broker closed the connection."""
        came = b""
        async with asyncio.timeout(_PATIENCE_S):
            try:
                while chunk := await self.reader.read(65_536):
                    came += chunk
            except ConnectionError:
                pass
        return came
