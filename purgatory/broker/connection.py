"""One client's connection: frames in, answers out, one request at a time.

As in Kafka, a connection's requests are served in order, and the next one is looked at when the one
before is answered: a long poll holds up what was sent after it.

Ground rules
------------
* Everything happens on the loop's thread. ``_frames`` holds whole frames that wait for their turn;
  when they are more than ``limits.queued_bytes``, nothing more is read from the client.
* What all connections of a broker hold, in requests that are not answered yet, is counted in one
  `HeldBytes`; whoever brings it above ``limits.held_bytes`` is cut off.
* Bytes that are no request close the connection, with one line in the log, and touch no other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, cast

import structlog

from purgatory.broker.errors import BadRequestError, UnsupportedVersionError
from purgatory.broker.wire import API_VERSIONS, Request, decode_request, encode_response

_log = structlog.get_logger("purgatory.broker")

_LENGTH_BYTES = 4
_UNSUPPORTED_VERSION = 35

Answer = Mapping[str, Any] | None
"""The fields of an answer; None sends none."""

Serve = Callable[[Request, "Connection"], Awaitable[Answer]]
Send = Callable[["Connection", Request, bytes], Awaitable[None]]
"""Brings an encoded answer to the client: `Connection.write`, or what a fault makes of it."""


class Limits(NamedTuple):
    """What one client may ask of a broker.

    Args:
        frame_bytes: the longest request.
        queued_bytes: so much of a client's requests may wait; then it is not read from.
        held_bytes: so much may the requests of all clients of a broker take together.
        connections: how many clients a broker serves at the same time.
    """

    frame_bytes: int = 100 * 1024 * 1024
    queued_bytes: int = 16 * 1024 * 1024
    connections: int = 10_000
    held_bytes: int = 1024 * 1024 * 1024


class HeldBytes:
    """How much the requests of all clients of a broker take: begun, waiting, being served."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class Connection(asyncio.Protocol):
    """Serves one client.

    Args:
        serve: answers one request.
        send: brings the answer to the client.
        limits: what the client may ask.
        held: what all connections of the broker hold.
        on_open: called first; the client is turned away if it says False.
        on_close: called once the connection is gone.
    """

    def __init__(
        self,
        serve: Serve,
        send: Send,
        limits: Limits,
        held: HeldBytes,
        on_open: Callable[[Connection], bool],
        on_close: Callable[[Connection], None],
    ) -> None:
        self.peer = "?"
        self.was_cut = False
        self.user: str | None = None
        self.mechanism: str | None = None
        self._serve = serve
        self._send = send
        self._limits = limits
        self._all_held = held
        self._held_bytes = 0
        self._refused = False
        self._on_open = on_open
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None
        self._unread = bytearray()
        self._frames: deque[bytes] = deque()
        self._queued_bytes = 0
        self._reading = True
        self._frame_came: asyncio.Future[None] | None = None
        self._may_write: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = f"{peer[0]}:{peer[1]}"
        if not self._on_open(self):
            self._transport.abort()
            return
        self._task = asyncio.get_running_loop().create_task(self._work())

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unread += data
        self._hold(len(data))
        try:
            self._check_held()
            self._take_frames()
        except BadRequestError as error:
            self._refuse(error)
            return
        if self._queued_bytes > self._limits.queued_bytes and self._reading:
            self._reading = False
            self._open_transport.pause_reading()
        if self._frames and self._frame_came is not None and not self._frame_came.done():
            self._frame_came.set_result(None)

    def pause_writing(self) -> None:
        self._may_write = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._may_write is not None and not self._may_write.done():
            self._may_write.set_result(None)
        self._may_write = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        self._hold(-self._held_bytes)
        if self._task is not None:
            self._task.cancel()
            self._on_close(self)
        self._transport = None

    # What the broker calls.

    def abort(self) -> None:
        """Cut the connection: the client sees it reset."""
        self.was_cut = True
        if self._transport is not None:
            self._transport.abort()

    async def write(self, frame: bytes) -> bool:
        """Send an answer, and wait while the client takes none; False where it is gone."""
        if self._transport is None or self._transport.is_closing():
            return False
        self._transport.write(frame)
        if self._may_write is not None:
            await asyncio.shield(self._may_write)
        return True

    # Serving.

    def _hold(self, size: int) -> None:
        if self._transport is None:
            return  # it is gone, and what it held is counted no more
        self._held_bytes += size
        self._all_held.total += size

    def _check_held(self) -> None:
        if self._all_held.total > self._limits.held_bytes:
            raise BadRequestError(
                f"the clients' requests take {self._all_held.total} bytes, "
                f"at most {self._limits.held_bytes} are held"
            )

    def _take_frames(self) -> None:
        unread = self._unread
        start = 0
        while len(unread) - start >= _LENGTH_BYTES:
            length = int.from_bytes(unread[start : start + _LENGTH_BYTES], "big", signed=True)
            if not 0 <= length <= self._limits.frame_bytes:
                raise BadRequestError(
                    f"a request of {length} bytes; at most {self._limits.frame_bytes} are taken"
                )
            end = start + _LENGTH_BYTES + length
            if end > len(unread):
                break
            self._frames.append(bytes(memoryview(unread)[start + _LENGTH_BYTES : end]))
            self._queued_bytes += length
            start = end
        if start:
            del unread[:start]

    async def _work(self) -> None:
        while True:
            while not self._frames:
                self._frame_came = asyncio.get_running_loop().create_future()
                await self._frame_came
            frame = self._frames.popleft()
            self._queued_bytes -= len(frame)
            if not self._reading and self._queued_bytes <= self._limits.queued_bytes:
                self._reading = True
                self._open_transport.resume_reading()
            try:
                await self._answer(frame)
                self._hold(-_LENGTH_BYTES - len(frame))
            except BadRequestError as error:
                self._refuse(error)
                return
            except Exception:
                # A fault of ours: this client learns of it by the cut, the others go on.
                _log.exception("request_failed", peer=self.peer)
                self.abort()
                return

    async def _answer(self, frame: bytes) -> None:
        try:
            request = decode_request(frame)
        except UnsupportedVersionError as error:
            if error.api_key != API_VERSIONS:
                raise
            # Who asks in too new a version is told, in the oldest, which ones there are.
            request = Request(API_VERSIONS, 0, error.correlation_id, None, None)
        values = await self._serve(request, self)
        if values is None:
            return
        encoded = encode_response(
            request.api_key, request.api_version, request.correlation_id, values
        )
        await self._send(self, request, encoded)

    def _refuse(self, error: BadRequestError) -> None:
        if self._refused:
            return
        self._refused = True
        _log.warning("bad_request", peer=self.peer, reason=str(error))
        self.abort()

    @property
    def _open_transport(self) -> asyncio.Transport:
        assert self._transport is not None, "called while it is open"
        return self._transport
