"""One client's connection through the proxy, and the one to the broker that belongs to it.

Requests and responses are passed on as bytes. Of a request the header is read: its API, version,
number and client id, and the acks of a produce, which say whether there is a response. Of a
response the number is compared with that of the oldest request without one. A frame is taken whole,
and held back, only where somebody has to look into it: a fault, the trace, or because it has the
address of a broker.

A request into which a fault may be injected is served as brokers serve all requests: the responses
to those before it come first, and those behind it wait.

Ground rules
------------
* Everything happens on the event loop's thread.
* A side is not read from while the other one doesn't take what came, or a frame is held back.
* Bytes that are no frame of the protocol close both connections, with one line in the log, and
  touch no others.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

from purgatory.cluster.errors import BadRequestError
from purgatory.cluster.listeners import Listener
from purgatory.cluster.protocol.connection import Limits, foreign_protocol
from purgatory.cluster.protocol.fixed_layouts import PRODUCE
from purgatory.cluster.protocol.frame_check import read_varint
from purgatory.cluster.protocol.wire import Request
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ClusterError
from purgatory.proxy.addresses import Addresses, BadResponseError, ProxiedBroker, is_known
from purgatory.settings.addresses import host_and_port

_log = Logger("purgatory.proxy")

_HEADER = struct.Struct(">ihhih")
"""The length, the API, its version, the request's number, the client id's length."""
_SHORT = struct.Struct(">h")
_RESPONSE = struct.Struct(">ii")
_PREFIX_BYTES = 4
_MIN_REQUEST_BYTES, _MIN_RESPONSE_BYTES = 8, 4
_PRODUCE_TRANSACTIONAL, _PRODUCE_FLEXIBLE = 3, 9
_SASL_HANDSHAKE = 17
_MAX_VERSION = 50
_QUEUED_BYTES = 1024 * 1024
_MAX_FRAME_BYTES = Limits().frame_bytes
_CONNECT_TIMEOUT_S = 30.0


class Start(NamedTuple):
    """The beginning of a request: its header, its bytes with the length, whether it is answered."""

    request: Request
    size: int
    has_response: bool


class Hooks(Protocol):
    """What looks into frames."""

    def concerns_request(self, broker: ProxiedBroker, request: Request) -> bool:
        """Whether a request has to be served by `serve`."""

    def concerns_response(self, broker: ProxiedBroker, request: Request) -> bool:
        """Whether a response is looked into, and so taken whole."""

    async def serve(self, connection: ClientConnection, start: Start, frame: bytes) -> None:
        """Have a request answered."""

    def try_deliver(self, connection: ClientConnection, request: Request, frame: bytes) -> bool:
        """Send a response, if that takes no time and it stays as it is; return whether it was."""

    def on_close(self, connection: ClientConnection) -> None:
        """Called when a client is gone."""

    async def deliver(self, connection: ClientConnection, request: Request, frame: bytes) -> None:
        """Send a response."""


class Upstream(NamedTuple):
    """How the proxy comes to brokers.

    Args:
        tls: None: plain connections.
    """

    tls: ssl.SSLContext | None = None


class Side(asyncio.Protocol):
    """One of the two connections."""

    def __init__(self) -> None:
        self.peer = "?"
        self.transport: asyncio.Transport | None = None
        self.other: Side | None = None
        self._holds: set[str] = set()
        self._unread = bytearray()
        self._left = 0
        """So many bytes of a frame that is passed on are still to come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = host_and_port(peer[0], peer[1])

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.hold("full")

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.release("full")

    def hold(self, reason: str) -> None:
        """Read nothing more until this is released."""
        if not self._holds and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self._holds.add(reason)

    def release(self, reason: str) -> None:
        """Read again, if nothing else holds it."""
        if reason not in self._holds:
            return
        self._holds.discard(reason)
        if not self._holds and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def write(self, frame: bytes) -> bool:
        """Send bytes; False if the connection is gone."""
        if self.transport is None or self.transport.is_closing():
            return False
        self.transport.write(frame)
        return True

    def close(self) -> None:
        """Close the connection once everything is sent."""
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        """Reset the connection."""
        if self.transport is not None:
            self.transport.abort()

    def take_unread(self) -> bytes:
        """Return the bytes that came and were not passed on."""
        data = bytes(self._unread)
        self._unread.clear()
        return data


class ClientConnection(Side):
    """The side of the client.

    Args:
        broker: whose listener it came by.
        listener: how that listens.
        addresses: rewrites responses.
        hooks: look into frames.
        upstream: how the broker is connected to.
        warn_once: logs a warning, the first time.
    """

    def __init__(
        self,
        broker: ProxiedBroker,
        listener: Listener,
        addresses: Addresses,
        hooks: Hooks,
        upstream: Upstream,
        warn_once: Callable[..., None],
    ) -> None:
        super().__init__()
        self.broker = broker
        self.listener = listener
        self.addresses = addresses
        self.hooks = hooks
        self.is_cut = False
        self.other: BrokerConnection | None = None
        self._upstream = upstream
        self._warn_once = warn_once
        self._takes_tokens = False
        self._needed_bytes = 0
        self._arrived: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.broker.connections.add(self)
        self._task = asyncio.get_running_loop().create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        if self._task is None:
            self._pass(self.take_unread() + data if self._unread else data)
            return
        self._unread += data
        is_whole = len(self._unread) >= self._needed_bytes
        if is_whole and self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
        if len(self._unread) > max(_QUEUED_BYTES, self._needed_bytes):
            self.hold("queued")

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.broker.connections.discard(self)
        if self._task is not None:
            self._task.cancel()
        if self.other is not None:
            if self.is_cut:
                self.other.reset()
            else:
                self.other.close()
        self.hooks.on_close(self)

    def abort(self) -> None:
        """Reset the connection; the one to the broker goes with it."""
        self.is_cut = True
        self.reset()

    def end(self) -> None:
        """Close the connection, since the broker's is closed, once a request is served."""
        if self._task is None:
            self.close()
        else:
            self._task.add_done_callback(lambda _: self.close())

    async def _connect(self) -> None:
        host, port = self.broker.address
        tls = self._upstream.tls
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: BrokerConnection(self),
                    host,
                    port,
                    ssl=tls,
                    server_hostname=None if tls is None else host,
                )
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no connection within {_CONNECT_TIMEOUT_S:g} s"
            _log.warning(
                "broker_unreachable",
                address=str(self.broker.address),
                peer=self.peer,
                reason=reason,
            )
            self.abort()
            return
        if self.other is not None:  # else the client left meanwhile
            self._go_on()

    def _go_on(self) -> None:
        self._task = None
        self._pass(self.take_unread())
        if self._task is None:
            self.release("queued")

    # Requests.

    def _pass(self, data: bytes) -> None:
        """Pass on what may be passed on, up to a request that has to be served."""
        assert self.other is not None
        at, size = 0, len(data)
        try:
            while at < size:
                if self._left:
                    step = min(self._left, size - at)
                    self._left -= step
                    at += step
                    continue
                start = self._read_start(data, at)
                if start is None:
                    break
                if not self._takes_tokens and self.hooks.concerns_request(
                    self.broker, start.request
                ):
                    self._task = asyncio.get_running_loop().create_task(self._serve(start))
                    break
                self._expect(start)
                self._left = start.size
        except BadRequestError as error:
            self.refuse(error)
            return
        if at:
            self.other.write(data if at == size else data[:at])
        if at < size:
            self._unread += data[at:]

    def _expect(self, start: Start, response: asyncio.Future[bytes] | None = None) -> None:
        assert self.other is not None
        if start.has_response:
            self.other.expect(None if self._takes_tokens else start.request, response)
        request = start.request
        if request.api_key == _SASL_HANDSHAKE and request.api_version == 0:
            self._takes_tokens = True  # of the mechanism, without headers

    def _read_start(self, data: bytes | bytearray, at: int) -> Start | None:
        """Read the header of a request; None if it is not whole.

        Raises:
            BadRequestError: that is no request.
        """
        if len(data) - at < _PREFIX_BYTES:
            return None
        length = int.from_bytes(data[at : at + _PREFIX_BYTES], "big", signed=True)
        if not 0 <= length <= _MAX_FRAME_BYTES:
            begin = bytes(data[at : at + _PREFIX_BYTES])
            hint = foreign_protocol(begin, self.listener)
            raise BadRequestError(hint or f"a request of {length} bytes")
        size = _PREFIX_BYTES + length
        end = min(len(data), at + size)
        is_whole = end == at + size
        if self._takes_tokens:
            if not is_whole:
                return None
            if not _is_request(data, at, length):
                return Start(Request(_SASL_HANDSHAKE, 0, 0, None, None), size, True)
            self._takes_tokens = False
        if length < _MIN_REQUEST_BYTES:
            raise BadRequestError(f"a request of {length} bytes is shorter than a header")
        if end - at < _HEADER.size and not is_whole:
            return None
        if length + _PREFIX_BYTES < _HEADER.size:
            raise BadRequestError(f"a request of {length} bytes is shorter than a header")
        _, api_key, version, correlation_id, id_size = _HEADER.unpack_from(data, at)
        body_at = at + _HEADER.size + max(0, id_size)
        if body_at > at + size or id_size < -1:
            raise BadRequestError(f"a client id of {id_size} bytes in a request of {length}")
        if body_at > end:
            return None
        try:
            client_id = None if id_size < 0 else bytes(data[at + _HEADER.size : body_at]).decode()
        except UnicodeDecodeError:
            raise BadRequestError("a client id that is no UTF-8") from None
        has_response = True
        if api_key == PRODUCE:
            acks = _read_acks(version, bytes(data[body_at:end]))
            if acks is None and is_whole:
                raise BadRequestError(f"produce v{version} ends before its acks")
            if acks is None:
                return None
            has_response = acks != 0
        if not is_known(api_key, version):
            self._warn_once("version_is_unknown", api=api_key, version=version)
        request = Request(api_key, version, correlation_id, client_id, None)
        return Start(request, size, has_response)

    async def _serve(self, start: Start) -> None:
        assert self.other is not None
        try:
            frame = await self._take(start.size)
            await self.other.drain()
            await self.hooks.serve(self, start, frame)
        except BadRequestError as error:
            self.refuse(error)
        except ClusterError as error:
            _log.error("request_failed", peer=self.peer, reason=str(error))
            self.abort()
        except Exception as error:
            # An error of the proxy: this connection is reset, the others continue.
            _log.error("request_failed", peer=self.peer, exc_info=error)
            self.abort()
        else:
            self._go_on()

    async def _take(self, size: int) -> bytes:
        """Return the next bytes from the client."""
        while len(self._unread) < size:
            self._needed_bytes = size
            self._arrived = asyncio.get_running_loop().create_future()
            self.release("queued")
            await self._arrived
        frame = bytes(self._unread[:size])
        del self._unread[:size]
        self._needed_bytes = 0
        return frame

    async def forward(self, start: Start, frame: bytes) -> bytes | None:
        """Send a request to the broker, and return its response; None if there is none."""
        assert self.other is not None
        if not start.has_response:
            self.other.write(frame)
            return None
        response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._expect(start, response)
        self.other.write(frame)
        return await response

    def refuse(self, error: BadRequestError) -> None:
        """Close both connections because of bytes that are no frame."""
        if isinstance(error, BadResponseError):
            address = str(self.broker.address)
            _log.warning("bad_response", broker=address, peer=self.peer, reason=str(error))
        else:
            _log.warning("bad_request", peer=self.peer, reason=str(error))
        self.abort()


class BrokerConnection(Side):
    """The side of the broker.

    Args:
        client: the other side.
    """

    def __init__(self, client: ClientConnection) -> None:
        super().__init__()
        self.other: ClientConnection = client
        self._client = client
        self._pending: deque[tuple[Request | None, asyncio.Future[bytes] | None]] = deque()
        """Requests without a response, None for a token of SASL; who waits for the response."""
        self._needed_bytes = 1
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._client.transport is None or self._client.transport.is_closing():
            self.reset()
            return
        self._client.other = self

    def expect(self, request: Request | None, response: asyncio.Future[bytes] | None) -> None:
        """Expect a response, which somebody may wait for."""
        self._pending.append((request, response))

    async def drain(self) -> None:
        """Wait until all responses were passed on."""
        if not self._is_drained():
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def _is_drained(self) -> bool:
        return not self._pending and not self._left and self._task is None

    def data_received(self, data: bytes) -> None:
        if self._task is None and not self._unread:
            self._pass(data)
            return
        self._unread += data
        if self._task is None and len(self._unread) >= self._needed_bytes:
            self._pass(self.take_unread())

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        for _, response in self._pending:
            if response is not None:
                response.cancel()
        if self._drained is not None and not self._drained.done():
            self._drained.cancel()
        if self._task is None:
            self._client.end()
        elif self._client.is_cut:
            self._task.cancel()
        else:
            self._task.add_done_callback(lambda _: self._client.end())

    def _pass(self, data: bytes) -> None:
        """Pass on what may be passed on, up to a response that is held back."""
        at, size = 0, len(data)
        begin = 0
        self._needed_bytes = 1
        try:
            while at < size:
                if self._left:
                    step = min(self._left, size - at)
                    self._left -= step
                    at += step
                    continue
                is_token = bool(self._pending) and self._pending[0][0] is None
                if size - at < (_PREFIX_BYTES if is_token else _RESPONSE.size):
                    break
                request, response, end = self._read_start(data, at)
                is_held = request is not None and self._client.hooks.concerns_response(
                    self._client.broker, request
                )
                if response is None and not is_held:
                    self._pending.popleft()
                    self._left = end - at
                    continue
                if end > size:
                    self._needed_bytes = end - at
                    break
                self._client.write(data[begin:at])
                frame, begin, at = data[at:end], end, end
                self._pending.popleft()
                if response is None:
                    assert request is not None
                    if self._client.hooks.try_deliver(self._client, request, frame):
                        continue
                    self._task = asyncio.get_running_loop().create_task(self._send(request, frame))
                    break
                if not response.done():
                    response.set_result(frame)
        except BadResponseError as error:
            self._client.refuse(error)
            return
        if at > begin:
            self._client.write(data[begin:at] if begin or at < size else data)
        if at < size:
            self._unread += data[at:]
        if self._drained is not None and not self._drained.done() and self._is_drained():
            self._drained.set_result(None)

    def _read_start(
        self, data: bytes, at: int
    ) -> tuple[Request | None, asyncio.Future[bytes] | None, int]:
        """Return the request that a response belongs to, who waits for it, and where it ends.

        Raises:
            BadResponseError: that is no response, or to no request.
        """
        length = int.from_bytes(data[at : at + _PREFIX_BYTES], "big", signed=True)
        if not self._pending:
            raise BadResponseError(f"{size_text(length)} to no request")
        request, response = self._pending[0]
        if length < (0 if request is None else _MIN_RESPONSE_BYTES):
            raise BadResponseError(f"{size_text(length)} is shorter than a header")
        correlation_id = int.from_bytes(data[at + _PREFIX_BYTES : at + 8], "big", signed=True)
        if request is not None and request.correlation_id != correlation_id:
            raise BadResponseError(
                f"a response to request {correlation_id}, where that to request "
                f"{request.correlation_id} ({request.api_name}) is due"
            )
        return request, response, at + _PREFIX_BYTES + length

    async def _send(self, request: Request, frame: bytes) -> None:
        """Send a response that was held back, and go on."""
        self.hold("held")
        try:
            await self._client.hooks.deliver(self._client, request, frame)
        except BadRequestError as error:
            self._client.refuse(error)
        except ClusterError as error:
            _log.error("response_failed", peer=self._client.peer, reason=str(error))
            self._client.abort()
        except Exception as error:
            # An error of the proxy: this connection is reset, the others continue.
            _log.error("response_failed", peer=self._client.peer, exc_info=error)
            self._client.abort()
        else:
            self._task = None
            self._pass(self.take_unread())
            if self._task is None:
                self.release("held")


def size_text(length: int) -> str:
    """Return "a response of 20 bytes"."""
    return f"a response of {length} bytes"


def _is_request(data: bytes | bytearray, at: int, length: int) -> bool:
    """Whether a frame amid tokens of SASL is a request: the codec knows its API."""
    if length + _PREFIX_BYTES < _HEADER.size:
        return False
    _, api_key, version, _, id_size = _HEADER.unpack_from(data, at)
    return is_known(api_key, min(version, _MAX_VERSION)) and -1 <= id_size <= length


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
