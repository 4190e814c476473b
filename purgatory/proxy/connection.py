"""One client's connection through the proxy, and its connection to the broker.

Requests and responses are passed on as bytes. Of a request the header is read: its API, version,
number and client id, and the acks of a produce, which tell whether there is a response. After
SaslHandshake 0, frames are tokens of a mechanism, without headers, until one is a request again.
The number of a response is compared with that of the oldest pending request. A frame is read whole,
and held back, only for a fault, the trace, or the address of a broker in it.

A request into which a fault may be injected is served as by a broker: after the responses to the
requests before it, and before the requests behind it.

Ground rules
------------
* Everything happens on the event loop's thread.
* One task reads from the client, one from the broker. Each waits while the other side doesn't read,
  or a frame is held back.
* While a client doesn't read a response, none of its requests is served.
* Bytes that are no frame of the protocol close both connections, with one line in the log, and
  touch no others.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from kio.schema.index import api_key_map

from purgatory.cluster.errors import BadRequestError
from purgatory.cluster.listeners import Listener
from purgatory.cluster.protocol.connection import foreign_protocol
from purgatory.cluster.protocol.fixed_layouts import PRODUCE
from purgatory.cluster.protocol.frame_check import read_varint
from purgatory.cluster.protocol.memory_pool import Limits
from purgatory.cluster.protocol.wire import Request
from purgatory.cluster.steering.seen_requests import SeenRequest
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ClusterError
from purgatory.proxy.addresses import BUFFER_BYTES, BadResponseError, ProxiedBroker, is_known
from purgatory.settings.addresses import host_and_port

_log = Logger("purgatory.proxy")

PREFIX_BYTES, _RESPONSE_START_BYTES = 4, 8
_HEADER = struct.Struct(">ihhih")
"""The length, the API, its version, the request's number, the client id's length."""
_SHORT = struct.Struct(">h")
_SASL_HANDSHAKE = 17
_PRODUCE_TRANSACTIONAL, _PRODUCE_FLEXIBLE = 3, 9
_MAX_FRAME_BYTES = Limits().frame_bytes
_MAX_TOKEN_BYTES = 512 * 1024
"""As Kafka's ``sasl.server.max.receive.size``."""

_MAX_BEFORE_ACKS_BYTES = 64 * 1024
"""The limit of a produce's bytes before its acks: a transactional id, and tagged fields."""

_START_BYTES = 64
"""The bytes of each read until the header is complete, mostly one."""

_PART_BYTES = 64 * 1024
"""The size of the parts in which longer frames are passed on."""


class RequestHeader(NamedTuple):
    """The header of a request, decoded as ``request``: None for a token of SASL, which has none.

    ``head`` has the first bytes of the frame, ``size`` is that of the frame with its length.
    """

    head: bytes
    size: int
    request: Request | None
    has_response: bool = True


async def read_header(
    reader: asyncio.StreamReader, listener: Listener, takes_tokens: bool
) -> RequestHeader:
    """Read the header of a request.

    Args:
        reader: the client's bytes.
        listener: the client's listener.
        takes_tokens: whether the frame may be a token of SASL.

    Raises:
        BadRequestError: the frame is no request.
        EOFError: the client is gone.
    """
    head = await reader.readexactly(PREFIX_BYTES)
    length = int.from_bytes(head, "big", signed=True)
    if not 0 <= length <= _MAX_FRAME_BYTES:
        raise BadRequestError(foreign_protocol(head, listener) or f"a request of {length} bytes")
    size = PREFIX_BYTES + length
    head += await reader.readexactly(min(length, _START_BYTES))
    if size >= _HEADER.size:
        _, api_key, version, correlation_id, id_size = _HEADER.unpack_from(head)
    if takes_tokens and not (
        size >= _HEADER.size and is_known(api_key, version) and -1 <= id_size <= length
    ):
        if length > _MAX_TOKEN_BYTES:
            raise BadRequestError(f"a token of SASL of {length} bytes")
        return RequestHeader(head, size, None)
    if size < _HEADER.size:
        raise BadRequestError(f"a request of {length} bytes is shorter than a header")
    body_at = _HEADER.size + max(0, id_size)
    if body_at > size or id_size < -1:
        raise BadRequestError(f"a client id of {id_size} bytes in a request of {length}")
    head += await reader.readexactly(max(0, body_at - len(head)))
    try:
        client_id = None if id_size < 0 else head[_HEADER.size : body_at].decode()
    except UnicodeDecodeError:
        raise BadRequestError("a client id that is no UTF-8") from None
    acks: int | None = -1
    if api_key == PRODUCE:
        while (acks := _read_acks(version, head[body_at:])) is None:
            if len(head) == size or len(head) - body_at > _MAX_BEFORE_ACKS_BYTES:
                raise BadRequestError(f"produce v{version} has no acks where they belong")
            head += await reader.readexactly(min(_START_BYTES, size - len(head)))
    return RequestHeader(
        head, size, Request(api_key, version, correlation_id, client_id, None), acks != 0
    )


def _read_acks(version: int, data: bytes) -> int | None:
    """Read the acks of a produce, behind its client id; None if the bytes end before."""
    at = 0
    try:
        if version >= _PRODUCE_FLEXIBLE:
            count, at = read_varint(data, at)
            for _ in range(count):  # tagged fields of the header
                _, at = read_varint(data, at)
                size, at = read_varint(data, at)
                at += size
            size, at = read_varint(data, at)
            at += max(0, size - 1)
        elif version >= _PRODUCE_TRANSACTIONAL:
            at = 2 + max(0, *_SHORT.unpack_from(data, at))
        return int(*_SHORT.unpack_from(data, at))
    except (IndexError, struct.error):
        return None


async def _pass(
    head: bytes,
    size: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    before_last: Callable[[bytes], object] | None = None,
) -> None:
    """Pass on a frame that begins with ``head``.

    Args:
        before_last: called with the whole frame before its last part is passed on; None: the frame
            isn't kept.
    """
    part, remaining = head, size - len(head)
    parts = []
    while True:
        if remaining:
            more = await reader.readexactly(min(remaining, _PART_BYTES))
            part, remaining = part + more, remaining - len(more)
        if before_last is not None:
            parts.append(part)
            if not remaining:
                before_last(b"".join(parts))
        writer.write(part)
        await writer.drain()
        if not remaining:
            return
        part = b""


class FrameFaults(Protocol):
    """The faults of a proxy, as its connections use them: `faults.ProxyFaults`."""

    def keeps_request(self, request: Request, size: int) -> bool:
        """Whether a request is read whole, and kept."""

    def concerns_request(self, broker: ProxiedBroker, request: Request) -> bool:
        """Whether a request has to be served by `serve`."""

    def concerns_response(self, broker: ProxiedBroker, request: Request) -> bool:
        """Whether a response is taken whole, and sent by `deliver`."""

    async def serve(
        self, connection: ClientConnection, header: RequestHeader, frame: bytes
    ) -> None:
        """Serve a request, with the active faults."""

    def keep(self, connection: ClientConnection, request: Request, frame: bytes) -> SeenRequest:
        """Keep a request that passes."""

    def keep_answer(self, seen: SeenRequest, frame: bytes) -> None:
        """Keep the answer to it."""

    async def deliver(
        self,
        connection: ClientConnection,
        request: Request,
        frame: bytes,
        seen: SeenRequest | None = None,
    ) -> None:
        """Send a response to a request, which may be kept."""

    def on_close(self, connection: ClientConnection) -> None:
        """Record that a client is gone."""


class _Pending(NamedTuple):
    """A request without a response so far.

    ``request`` is None for a token of SASL, ``response`` the future of an awaited response, and
    ``seen`` the kept request.
    """

    request: Request | None
    response: asyncio.Future[bytes] | None
    seen: SeenRequest | None


class _ClientProtocol(asyncio.StreamReaderProtocol):
    """Notifies a connection that its client is gone, during any wait."""

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__(connection.reader, connection.begin)
        self._connection = connection

    def eof_received(self) -> bool:
        super().eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(None)  # what came before the error can still be read
        self._connection.on_client_lost()


class ClientConnection:
    """A client's connection, with that to the broker.

    Args:
        broker: the broker.
        listener: the client's listener.
        faults: serves frames.
    """

    def __init__(self, broker: ProxiedBroker, listener: Listener, faults: FrameFaults) -> None:
        self.broker = broker
        self.reader = asyncio.StreamReader(BUFFER_BYTES)
        self.protocol = _ClientProtocol(self)
        self.is_cut = False
        self.peer = "?"
        self._listener = listener
        self._faults = faults
        self._takes_tokens = False
        self._writers: list[asyncio.StreamWriter] = []
        """The writers to the client, and to the broker once it is connected."""
        self._pending: asyncio.Queue[_Pending] = asyncio.Queue()
        self._ends_with_client = False
        """Whether the task waits for anything but the client's bytes."""
        self._executing = asyncio.Lock()
        """Held while a request is served, after the responses to those before it."""
        self._task: asyncio.Task[None] | None = None

    def begin(self, _: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """Begin to serve the client."""
        self._writers.append(client)
        peer = client.get_extra_info("peername")
        if peer:
            self.peer = host_and_port(peer[0], peer[1])
        self.broker.connections.add(self)
        if self.broker.is_closed:  # while this one was accepted
            self.abort()
        else:
            self._task = self.broker.start_task(self._run())

    def on_client_lost(self) -> None:
        """End the task, if it waits for anything but the client."""
        self.broker.connections.discard(self)
        if self._task is not None and self._ends_with_client:
            self._task.cancel()
        self._faults.on_close(self)

    def write(self, frame: bytes) -> bool:
        """Send a response; False if the client is gone."""
        client = self._writers[0]
        if client.is_closing():
            return False
        client.write(frame)
        return True

    def abort(self) -> None:
        """Reset the connection; the one to the broker goes with it."""
        self.is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    async def _run(self) -> None:
        try:
            reader, broker = await self.broker.connect()
        except OSError as error:
            address = str(self.broker.address)
            _log.warning("broker_unreachable", address=address, peer=self.peer, reason=str(error))
            self.abort()
            return
        self._writers.append(broker)
        if self.is_cut:  # meanwhile
            self.abort()
        responses = self.broker.start_task(self._pass_responses(reader))
        try:
            await self._guard("request_failed", self._pass_requests())
            if self in self.broker.connections:  # the broker is gone; late responses may follow
                self._ends_with_client = True
                await responses
        finally:
            responses.cancel()
            await self._close(responses)

    async def _close(self, responses: asyncio.Task[None]) -> None:
        """Close both connections once all is sent, or at once when the proxy stops."""
        try:
            await asyncio.wait([responses])
            for writer in self._writers:
                writer.close()
            if not self.broker.is_closed:
                for writer in self._writers:
                    with suppress(OSError):
                        await writer.wait_closed()
        finally:
            for writer in self._writers:
                writer.transport.abort()

    async def _guard(self, event: str, passing: Awaitable[None]) -> None:
        """Pass on frames until a side is gone; an error closes both, and others go on."""
        try:
            await passing
        except (EOFError, OSError):
            return
        except BadResponseError as error:
            address = str(self.broker.address)
            _log.warning("bad_response", broker=address, peer=self.peer, reason=str(error))
        except BadRequestError as error:
            _log.warning("bad_request", peer=self.peer, reason=str(error))
        except ClusterError as error:
            _log.error(event, peer=self.peer, reason=str(error))
        except Exception as error:  # of the proxy itself
            _log.error(event, peer=self.peer, exc_info=error)
        self.abort()

    # Requests.

    async def _pass_requests(self) -> None:
        while True:
            header = await read_header(self.reader, self._listener, self._takes_tokens)
            if self._is_concerned(header.request):
                await self._serve(header)
            elif header.request is not None and self._faults.keeps_request(
                header.request, header.size
            ):
                keep = partial(self._keep, header, header.request)
                await _pass(header.head, header.size, self.reader, self._writers[1], keep)
            else:
                self._expect(header)
                await _pass(header.head, header.size, self.reader, self._writers[1])

    def _keep(self, header: RequestHeader, request: Request, frame: bytes) -> None:
        self._expect(header, seen=self._faults.keep(self, request, frame))

    def _is_concerned(self, request: Request | None) -> bool:
        """Whether a request has to be served; None is a token of SASL."""
        if request is None:
            return False
        self._takes_tokens = False
        self.broker.requests[api_key_map.get(request.api_key, "unknown")] += 1
        return self._faults.concerns_request(self.broker, request)

    def _expect(
        self,
        header: RequestHeader,
        response: asyncio.Future[bytes] | None = None,
        seen: SeenRequest | None = None,
    ) -> None:
        request = header.request
        if header.has_response:
            self._pending.put_nowait(_Pending(request, response, seen))
        if request is not None and (request.api_key, request.api_version) == (_SASL_HANDSHAKE, 0):
            self._takes_tokens = True  # of the mechanism, without headers

    async def _serve(self, header: RequestHeader) -> None:
        frame = header.head + await self.reader.readexactly(header.size - len(header.head))
        self._ends_with_client = True
        # After a disconnect, requests that don't wait are served, such as those with acks=0.
        ending = None
        if self not in self.broker.connections and self._task is not None:
            ending = asyncio.get_running_loop().call_soon(self._task.cancel)
        await self._pending.join()
        async with self._executing:
            await self._faults.serve(self, header, frame)
        await self._writers[0].drain()
        if ending is not None:
            ending.cancel()
        self._ends_with_client = False

    async def forward(self, header: RequestHeader, frame: bytes) -> bytes | None:
        """Send a request to the broker, and return its response; None if there is none.

        Raises:
            ConnectionResetError: the broker is gone.
        """
        if self._writers[1].is_closing():
            raise ConnectionResetError
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._expect(header, response)
        self._writers[1].write(frame)
        return await response if header.has_response else None

    # Responses.

    async def _pass_responses(self, reader: asyncio.StreamReader) -> None:
        """Pass on all responses, and end the client's connection behind them."""
        await self._guard("response_failed", self._pass_each_response(reader))
        client, broker = self._writers
        broker.close()
        while not self._pending.empty():
            response = self._pending.get_nowait().response
            if response is not None and not response.done():
                response.set_exception(ConnectionResetError())
        async with self._executing:
            client.close()

    async def _pass_each_response(self, reader: asyncio.StreamReader) -> None:
        client = self._writers[0]
        while True:
            head = await reader.readexactly(PREFIX_BYTES)
            length = int.from_bytes(head, "big", signed=True)
            if self._pending.empty():
                raise BadResponseError(f"a response of {length} bytes to no request")
            request, response, seen = self._pending.get_nowait()
            if length < (0 if request is None else _RESPONSE_START_BYTES - PREFIX_BYTES):
                raise BadResponseError(f"a response of {length} bytes is shorter than a header")
            size = PREFIX_BYTES + length
            head += await reader.readexactly(min(length, _START_BYTES))
            if request is not None:
                correlation_id = int.from_bytes(
                    head[PREFIX_BYTES:_RESPONSE_START_BYTES], "big", signed=True
                )
                if correlation_id != request.correlation_id:
                    raise BadResponseError(
                        f"a response to request {correlation_id}, where that to request "
                        f"{request.correlation_id} ({request.api_name}) is due"
                    )
            if response is not None:
                frame = head + await reader.readexactly(size - len(head))
                if not response.done():
                    response.set_result(frame)
            elif request is not None and self._faults.concerns_response(self.broker, request):
                frame = head + await reader.readexactly(size - len(head))
                await self._faults.deliver(self, request, frame, seen)
                await client.drain()
            elif seen is not None and not client.is_closing():
                await _pass(head, size, reader, client, partial(self._faults.keep_answer, seen))
            else:
                await _pass(head, size, reader, client)
            self._pending.task_done()
