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
* While a client doesn't take a response, none of its requests is served.
* Bytes that are no frame of the protocol close both connections, with one line in the log, and
  touch no others.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from kio.schema.index import api_key_map

from purgatory.cluster.errors import BadRequestError
from purgatory.cluster.listeners import Listener
from purgatory.cluster.protocol.wire import Request
from purgatory.core.recent_errors import Logger
from purgatory.kafka.errors import ClusterError
from purgatory.proxy.addresses import BadResponseError, ProxiedBroker, is_known
from purgatory.proxy.request_start import PREFIX_BYTES, Start, read_start
from purgatory.settings.addresses import host_and_port

if TYPE_CHECKING:
    from purgatory.proxy.faults import ProxyFaults

_log = Logger("purgatory.proxy")

_RESPONSE_START_BYTES, _MIN_RESPONSE_BYTES = 8, 4
_SASL_HANDSHAKE = 17
_QUEUED_BYTES = 1024 * 1024
_CONNECT_TIMEOUT_S = 30.0


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
        faults: look into frames.
        tls: for the broker; None: a plain connection.
        warn_once: logs a warning, the first time.
    """

    def __init__(
        self,
        broker: ProxiedBroker,
        listener: Listener,
        faults: ProxyFaults,
        tls: ssl.SSLContext | None,
        warn_once: Callable[..., None],
    ) -> None:
        super().__init__()
        self.broker = broker
        self.listener = listener
        self.faults = faults
        self.is_cut = False
        self.other: BrokerConnection | None = None
        self._tls = tls
        self._warn_once = warn_once
        self._takes_tokens = False
        self._needed_bytes = 0
        self._arrived: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.broker.connections.add(self)
        if self.broker.is_closed:  # while this one was accepted
            self.abort()
            return
        self._task = self.broker.start_task(self._connect())

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

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
        if self.other is not None and self.other.transport is not None:
            self.broker.closing.add(self.other)
            if not self.is_cut:
                self.other.close()
        self.faults.on_close(self)

    def abort(self) -> None:
        """Reset the connection; the one to the broker goes with it."""
        self.is_cut = True
        self.reset()
        if self.other is not None:
            self.other.reset()

    def end(self) -> None:
        """Close the connection, since the broker's is closed, once a request is served."""
        if self._task is None:
            self.close()
            return
        self._task.add_done_callback(lambda _: self.close())
        if self._needed_bytes:  # the rest of a request that nobody will serve
            self._task.cancel()

    async def _connect(self) -> None:
        host, port = self.broker.address
        tls = self._tls
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: BrokerConnection(self),
                    host,
                    port,
                    ssl=tls,
                    server_hostname=None if tls is None else host,
                )
        except (OSError, TimeoutError, UnicodeError) as error:  # the last: a name that can't be one
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
                start = read_start(data, at, self.listener, self._takes_tokens)
                if start is None:
                    break
                if self._is_concerned(start.request):
                    self._task = self.broker.start_task(self._serve(start))
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

    def _is_concerned(self, request: Request | None) -> bool:
        """Whether a request has to be served; None is a token of SASL."""
        if request is None:
            return False
        self._takes_tokens = False
        self.broker.requests[api_key_map.get(request.api_key, "unknown")] += 1
        if not is_known(request.api_key, request.api_version):
            version = request.api_version
            self._warn_once("version_is_unknown", api=request.api_key, version=version)
        return self.faults.concerns_request(self.broker, request)

    def _expect(self, start: Start, response: asyncio.Future[bytes] | None = None) -> None:
        assert self.other is not None
        request = start.request
        if start.has_response:
            self.other.expect(request, response)
        if request is not None and (request.api_key, request.api_version) == (_SASL_HANDSHAKE, 0):
            self._takes_tokens = True  # of the mechanism, without headers

    async def _serve(self, start: Start) -> None:
        assert self.other is not None
        try:
            frame = await self._take(start.size)
            await self.other.drain()
            await self.faults.serve(self, start, frame)
            if self._writable is not None:
                await self._writable
        except Exception as error:
            self.fail("request_failed", error)
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
        if not self.other.write(frame):
            response.cancel()  # the broker is gone, and with this task the client's connection
        return await response

    def refuse(self, error: BadRequestError) -> None:
        """Close both connections because of bytes that are no frame."""
        if isinstance(error, BadResponseError):
            address = str(self.broker.address)
            _log.warning("bad_response", broker=address, peer=self.peer, reason=str(error))
        else:
            _log.warning("bad_request", peer=self.peer, reason=str(error))
        self.abort()

    def fail(self, event: str, error: Exception) -> None:
        """Close both connections because of an error; others continue."""
        if isinstance(error, BadRequestError):
            self.refuse(error)
            return
        if isinstance(error, ClusterError):
            _log.error(event, peer=self.peer, reason=str(error))
        else:  # of the proxy itself
            _log.error(event, peer=self.peer, exc_info=error)
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
        """Wait until all responses were passed on, or the broker is gone."""
        if self.transport is not None and not self._is_drained():
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
        self._client.broker.closing.discard(self)
        for _, response in self._pending:
            if response is not None:
                response.cancel()
        if self._drained is not None and not self._drained.done():
            self._drained.cancel()
        if self._task is None:
            self._client.end()
        elif self._client.is_cut or self._client.transport is None:
            self._task.cancel()  # there is no client for the response

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
                if size - at < (PREFIX_BYTES if is_token else _RESPONSE_START_BYTES):
                    break
                request, response, end = self._read_start(data, at)
                is_held = request is not None and self._client.faults.concerns_response(
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
                    if self._client.faults.try_deliver(self._client, request, frame):
                        continue
                    self._task = self._client.broker.start_task(self._send(request, frame))
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
        length = int.from_bytes(data[at : at + PREFIX_BYTES], "big", signed=True)
        if not self._pending:
            raise BadResponseError(f"a response of {length} bytes to no request")
        request, response = self._pending[0]
        if length < (0 if request is None else _MIN_RESPONSE_BYTES):
            raise BadResponseError(f"a response of {length} bytes is shorter than a header")
        correlation_id = int.from_bytes(
            data[at + PREFIX_BYTES : at + _RESPONSE_START_BYTES], "big", signed=True
        )
        if request is not None and request.correlation_id != correlation_id:
            raise BadResponseError(
                f"a response to request {correlation_id}, where that to request "
                f"{request.correlation_id} ({request.api_name}) is due"
            )
        return request, response, at + PREFIX_BYTES + length

    async def _send(self, request: Request, frame: bytes) -> None:
        """Send a response that was held back, and go on."""
        self.hold("held")
        try:
            await self._client.faults.deliver(self._client, request, frame)
        except Exception as error:
            self._client.fail("response_failed", error)
        else:
            self._task = None
            self._pass(self.take_unread())
            if self._task is None:
                self.release("held")
                if self.transport is None:
                    self._client.end()
