"""One client's connection: frames in, responses out, one request at a time.

As in Kafka, a connection's requests are served in order, and each begins after the response to the
one before: a long poll holds up the requests behind it.

Connections with requests share the event loop in rounds (`FairScheduler`). In a round each of them
has an equal slice of ``PERIOD_S``, and at least one request; the rest waits for the next round.
Between two rounds lie some turns of the event loop, in which new clients are served at once,
followers copy records, and responses go out. A client thus waits for no more than one slice of each
other client, however many requests those have sent. A single connection with requests has the whole
of each round: the turns between cost once for dozens of requests.

Ground rules
------------
* Everything happens on the loop's thread. All brokers of a cluster share one `FairScheduler`.
* ``_unread`` has the received bytes that are not decoded yet; while they are more than
  ``limits.queued_bytes``, and a whole frame, nothing more is read from the client. A frame is
  removed only when it is served.
* Pending requests and unsent responses of all connections of a broker count in one `MemoryPool`.
  Above ``limits.held_bytes``, connections are cut: first those that have read nothing of a response
  for longest; then the one that exceeded the quota.
* While a client doesn't read a response, none of its further requests is served. The same holds
  for the throttle time of a client beyond its quota, as in Kafka: it is told to wait, and has to.
* Bytes that are no request close the connection, with one line in the log, and touch no other.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Awaitable, Callable, Mapping
from types import CoroutineType
from typing import Protocol, cast

from purgatory.cluster.errors import BadRequestError, UnsupportedVersionError
from purgatory.cluster.listeners import PLAINTEXT, Listener
from purgatory.cluster.protocol.fixed_layouts import FixedLayout
from purgatory.cluster.protocol.memory_pool import Limits, MemoryPool
from purgatory.cluster.protocol.subject import certificate_subject
from purgatory.cluster.protocol.wire import (
    API_VERSIONS,
    Request,
    ResponseBody,
    Versions,
    decode_request,
    encode_response,
)
from purgatory.core.recent_errors import Logger
from purgatory.kafka.security.sasl import Login
from purgatory.settings.addresses import host_and_port
from timer.machine_time import time

PERIOD_S = 0.005
"""The serving time of all connections together in a round."""

ITERATIONS_PER_PERIOD = 5
"""The turns of the event loop that a produce with acks=all takes until its response."""


class FairScheduler:
    """Divides computing time among the connections that are served.

    Args:
        now_s: returns the time, in seconds.
    """

    __slots__ = (
        "_call_soon",
        "_connections",
        "_iterations_left",
        "_last_connections",
        "now_s",
        "number",
    )

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s
        self.number = 0
        self._call_soon: Callable[[Callable[[], None]], object]
        self._connections = 0
        self._last_connections = 0
        self._iterations_left = 0

    def begin_slice(self) -> float:
        """Register a connection in this round; return the end of its time slice."""
        if self._connections == 0:
            self._iterations_left = ITERATIONS_PER_PERIOD
            self._call_soon = asyncio.get_running_loop().call_soon
            self._call_soon(self._next_iteration)
        self._connections += 1
        return self.now_s() + PERIOD_S / max(self._connections, self._last_connections)

    def _next_iteration(self) -> None:
        self._iterations_left -= 1
        if self._iterations_left:
            self._call_soon(self._next_iteration)
            return
        self.number += 1
        self._last_connections = self._connections
        self._connections = 0


class UnboundedScheduler(FairScheduler):
    """A scheduler with one endless round, for virtual worlds, where computing takes no time."""

    __slots__ = ()

    def begin_slice(self) -> float:
        return math.inf


class TimeSlice:
    """A connection's slices of the rounds."""

    __slots__ = ("_ends_s", "_period", "_scheduler")

    def __init__(self, scheduler: FairScheduler) -> None:
        self._scheduler = scheduler
        self._period = -1
        self._ends_s = 0.0

    def is_over(self) -> bool:
        """Whether the next request has to wait for the next round."""
        scheduler = self._scheduler
        if self._period != scheduler.number:
            self._period = scheduler.number
            self._ends_s = scheduler.begin_slice()
            return False
        return scheduler.now_s() >= self._ends_s


_log = Logger("purgatory.cluster")
ANONYMOUS = "User:ANONYMOUS"
"""The principal of an unauthenticated client."""

_LENGTH = struct.Struct(">i")
_LENGTH_BYTES = _LENGTH.size
_MAX_JOINED_BYTES = 65_536
Response = ResponseBody | None
"""The body of a response; None sends none."""

Serve = Callable[[Request, "Connection"], Response | Awaitable[Response]]
Send = Callable[["Connection", Request, bytes], Awaitable[None] | None]
"""Sends an encoded response: `Connection.write`, or a fault's replacement. The result may be
awaitable."""


class ResponseConnection(Protocol):
    """A connection to which responses are written; it may be ``is_cut``."""

    is_cut: bool

    def write(self, frame: bytes) -> bool:
        """Send a response; False if the client has disconnected."""

    def abort(self) -> None:
        """Reset the connection, after sending pending responses."""


async def await_response(response: Response | Awaitable[Response]) -> Response:
    """Return a response, awaiting it if needed."""
    return await response if isinstance(response, Awaitable) else response


_TLS_RECORD = b"\x16\x03"

_HTTP_METHODS = {
    b"GET ",
    b"HEAD",
    b"POST",
    b"PUT ",
    b"DELE",
    b"OPTI",
    b"PATC",
    b"CONN",
    b"TRAC",
    b"PRI ",  # HTTP/2
}


def foreign_protocol(begin: bytes, listener: Listener) -> str | None:
    """Return the likely protocol of a client whose first bytes are no request's length, or None."""
    takes = f"{listener.name} takes clients with security.protocol={listener.security_protocol}"
    if begin.startswith(_TLS_RECORD):
        return f"this looks like TLS on a plaintext listener: {takes}"
    if begin in _HTTP_METHODS:
        return f"this looks like HTTP on a listener of Kafka's protocol: {takes}"
    return None


class Connection(asyncio.Protocol):
    """Serves one client.

    Args:
        serve: handles one request.
        send: sends the response to the client.
        supported: the APIs by key, with the oldest and the newest version of each.
        limits: the limits of the client.
        held: the memory of all connections of the broker.
        scheduler: shared with all connections on the event loop.
        on_open: called first; False refuses the client.
        on_close: called once the connection is closed.
        listener: the client's listener.
    """

    def __init__(
        self,
        serve: Serve,
        send: Send,
        supported: Mapping[int, Versions],
        limits: Limits,
        held: MemoryPool,
        scheduler: FairScheduler,
        on_open: Callable[[Connection], bool],
        on_close: Callable[[Connection], None],
        listener: Listener = PLAINTEXT,
    ) -> None:
        self.listener = listener
        self.peer = "?"
        self.host = "?"
        """The client's address."""
        self.principal = ANONYMOUS
        """The client's principal, such as "User:ann"."""
        self.is_cut = False
        self.login: Login | None = None
        """The client's login, also after its end; None before a handshake."""
        self.take_token: Callable[[bytes], bytes] | None = None
        """If set, takes the next frame, a token instead of a request, and returns the response."""
        self._serve = serve
        self._send = send
        self._supported = supported
        self._limits = limits
        self._quota = held
        self._held_bytes = 0
        self.request_bytes = 0
        """The length of the request that is being served."""
        self._refused = False
        self._on_open = on_open
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None
        self._time_slice = TimeSlice(scheduler)
        self._scheduler = scheduler
        self._active_s = scheduler.now_s()
        self._frame_began_s: float | None = None
        self._unread = bytearray()
        self._needed_bytes = 1
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._reading = True
        self._in_request = False
        self._muted_until_s = 0.0
        self._data_arrived: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    # Calls of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not derived from it
        peer = transport.get_extra_info("peername")
        if peer:
            self.host = peer[0]
            self.peer = host_and_port(peer[0], peer[1])
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.principal = f"User:{certificate_subject(certificate)}"
        if not self._on_open(self):
            self._transport.abort()
            return
        self._task = asyncio.get_running_loop().create_task(self._work())

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unread += data
        self._active_s = self._scheduler.now_s()
        self._hold(len(data))
        if self._quota.total > self._limits.held_bytes:
            self._quota.make_room(self._limits.held_bytes)
            if self.is_cut:
                return
            if self._quota.total > self._limits.held_bytes:
                self._refuse(
                    BadRequestError(
                        f"the clients' requests take {self._quota.total} bytes, "
                        f"at most {self._limits.held_bytes} are held"
                    )
                )
                return
        if len(self._unread) < self._needed_bytes:
            return
        if (
            self._reading
            and self._transport is not None
            and len(self._unread) > self._limits.queued_bytes
        ):
            self._reading = False
            self._transport.pause_reading()
        if self._data_arrived is not None and not self._data_arrived.done():
            self._data_arrived.set_result(None)

    def pause_writing(self) -> None:
        loop = asyncio.get_running_loop()
        self._writable = loop.create_future()
        if self._transport is not None:
            self._quota.add_unsent(self, self._transport.get_write_buffer_size())
            # Not at once: the transport may be in the middle of a write.
            loop.call_soon(self._quota.make_room, self._limits.held_bytes)

    def resume_writing(self) -> None:
        self._quota.drop_unsent(self)
        self._active_s = self._scheduler.now_s()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.resume_writing()
        if self._task is None:
            return  # the client was refused
        if self.is_cut or self._in_request or self._muted_until_s:
            self._end()  # there is no client for the response
        elif self._data_arrived is not None and not self._data_arrived.done():
            self._data_arrived.set_result(None)

    # Calls of the broker.

    def abort(self) -> None:
        """Reset the connection, after sending pending responses."""
        self.is_cut = True
        if self._transport is not None:
            self._send_unsent()
            self._transport.abort()
        else:
            self._end()

    def abort_if_idle(self) -> None:
        """Reset the connection if it is idle, or a request is incomplete for too long."""
        now_s, limits = self._scheduler.now_s(), self._limits
        idle_s = now_s - self._active_s
        if self._frame_began_s is not None and now_s - self._frame_began_s > limits.frame_s:
            self._refuse(
                BadRequestError(
                    f"a request of which {len(self._unread)} bytes came in "
                    f"{now_s - self._frame_began_s:.1f} s: it has to be whole after "
                    f"{limits.frame_s:g} s"
                )
            )
        elif idle_s > limits.idle_s and (not self._in_request or self._writable is not None):
            _log.info("idle_connection_closed", peer=self.peer, idle_s=round(idle_s))
            self.abort()

    def mute(self, throttle_ms: int) -> None:
        """Serve no further request for a time."""
        if throttle_ms > 0:
            until_s = asyncio.get_running_loop().time() + throttle_ms / 1_000
            self._muted_until_s = max(self._muted_until_s, until_s)

    def write(self, frame: bytes) -> bool:
        """Send a response; False if the client has disconnected."""
        if self._transport is None or self._transport.is_closing():
            return False
        if not self._unread and not self._unsent:
            self._active_s = self._scheduler.now_s()
            self._transport.write(frame)
            return True
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        if not self._unread or self._unsent_bytes > _MAX_JOINED_BYTES:
            self._send_unsent()
        elif len(self._unsent) == 1:
            # More requests wait: their responses go together, at the latest in the next iteration.
            asyncio.get_running_loop().call_soon(self._send_unsent)
        return True

    @property
    def is_full(self) -> bool:
        """Whether the client doesn't read responses, so that writes wait."""
        return self._writable is not None

    async def drain(self) -> None:
        """Wait while the client doesn't read responses."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def _send_unsent(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._unsent_bytes = 0
        self._active_s = self._scheduler.now_s()
        if unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    def _end(self) -> None:
        """Release everything. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        self._hold(-self._held_bytes)
        if task is not asyncio.current_task():
            task.cancel()
        self._on_close(self)

    # Serving.

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._quota.total += size

    def _next_frame(self) -> bytes | None:
        """Take the next frame from the received bytes, if it is complete.

        Raises:
            BadRequestError: its length is invalid.
        """
        unread = self._unread
        if not unread:
            self._needed_bytes = 1
            return None
        if len(unread) < _LENGTH_BYTES:
            self._needed_bytes = _LENGTH_BYTES
            self._record_frame_begin()
            return None
        (length,) = _LENGTH.unpack_from(unread)
        if not 0 <= length <= self._limits.frame_bytes:
            raise BadRequestError(
                foreign_protocol(bytes(unread[:_LENGTH_BYTES]), self.listener)
                or f"a request of {length} bytes; at most {self._limits.frame_bytes} are taken"
            )
        end = _LENGTH_BYTES + length
        self._needed_bytes = end
        if len(unread) < end:
            self._record_frame_begin()
            return None
        self._frame_began_s = None
        frame = bytes(memoryview(unread)[_LENGTH_BYTES:end])
        del unread[:end]
        return frame

    def _record_frame_begin(self) -> None:
        if self._frame_began_s is None:
            self._frame_began_s = self._scheduler.now_s()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                while self._muted_until_s:
                    left_s = self._muted_until_s - loop.time()
                    if left_s > 0:
                        await asyncio.sleep(left_s)
                    else:
                        self._muted_until_s = 0.0
                frame = self._next_frame()
                if frame is None:
                    if self._transport is None:
                        break  # all of its requests are served
                    if not self._reading:
                        self._resume_reading()
                    self._data_arrived = loop.create_future()
                    await self._data_arrived
                    continue
                if not self._reading and len(self._unread) <= self._limits.queued_bytes:
                    self._resume_reading()
                while self._time_slice.is_over():
                    await asyncio.sleep(0)
                if self.is_cut:
                    break
                self._in_request = True
                # After a disconnect, requests that don't wait are served, as in Kafka: batches with
                # acks=0 are appended, up to a request that has a response.
                ending = None if self._transport is not None else loop.call_soon(self._end)
                await self._serve_frame(frame)
                if ending is not None:
                    ending.cancel()
                self._in_request = False
                self._hold(-_LENGTH_BYTES - len(frame))
        except BadRequestError as error:
            self._refuse(error)
        except Exception as error:
            # An error of the broker: this connection is reset, the others continue.
            _log.error("request_failed", peer=self.peer, exc_info=error)
            self.abort()
        else:
            self._end()

    def _resume_reading(self) -> None:
        if self._transport is not None:
            self._reading = True
            self._transport.resume_reading()

    async def _serve_frame(self, frame: bytes) -> None:
        if self.take_token is not None:
            take_token, self.take_token = self.take_token, None
            token = take_token(frame)
            self.write(len(token).to_bytes(_LENGTH_BYTES, "big") + token)
            await self.drain()
            return
        try:
            request = decode_request(frame, self._supported)
        except UnsupportedVersionError as error:
            if error.api_key != API_VERSIONS:
                raise
            # A client with too new a version gets the supported ones, in the oldest version.
            request = Request(API_VERSIONS, 0, error.correlation_id, None, None)
        self.request_bytes = len(frame)
        response = self._serve(request, self)
        if isinstance(response, CoroutineType):
            response = await response
        elif not isinstance(response, FixedLayout):
            response = await await_response(response)
        if response is None:
            return
        if self._transport is None:
            # After a disconnect, no request behind the first one with a response is served: a
            # client may leave thousands, again and again, each with its time slice.
            self._unread.clear()
            return
        encoded = encode_response(
            request.api_key, request.api_version, request.correlation_id, response
        )
        sending = self._send(self, request, encoded)
        if sending is not None:
            await sending
        if self._writable is not None:
            await self.drain()

    def _refuse(self, error: BadRequestError) -> None:
        if self._refused:
            return
        self._refused = True
        _log.warning("bad_request", peer=self.peer, reason=str(error))
        self.abort()
