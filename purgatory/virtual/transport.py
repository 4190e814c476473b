"""One end of a connection in a world, as an asyncio transport, and the wire to the other end.

As with TCP, bytes arrive in order and complete, or the connection breaks. Segments sent during a
partition are sent again afterwards; after `RETRANSMISSION_TIMEOUT_S` the connection times out.

Ground rules
------------
* Only the world's own thread uses it.
* ``_unsent`` holds bytes beyond the wire's window; ``_undelivered`` holds bytes received while
  reading is paused.
"""

from __future__ import annotations

import asyncio
import errno
import os
from asyncio import sslproto
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Any, Final, Protocol

from purgatory.virtual.clocks import US_PER_S, WorldClock
from purgatory.virtual.history import History

END: Final = b""
"""The last item of an end that sends nothing more."""

RETRANSMISSION_TIMEOUT_S = 924.6
"""The time for which Linux retransmits a segment by default, 15 times."""

_WINDOW_BYTES = 256 * 1024


class TimedLoop(Protocol):
    """The methods of the loop that a network needs."""

    def call_at_us(
        self,
        due_us: int,
        callback: Callable[..., object],
        *args: object,
        context: Context | None = None,
    ) -> object:
        """Call a function at a time of the world's clock."""

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> object:
        """Call a function in the next iteration."""


class WireLink(Protocol):
    """The settings of a link that a wire needs."""

    @property
    def us_per_byte(self) -> float:
        """0.0: unlimited bandwidth."""

    @property
    def max_segment_bytes(self) -> int | None:
        """The maximal segment; None: the whole window."""

    def delay_us(self) -> int:
        """Draw the delay of the next segment."""

    def is_lost(self) -> bool:
        """Draw whether the next segment is lost."""


class WireNetwork(Protocol):
    """The methods of a network that a wire needs."""

    clock: WorldClock
    history: History

    @property
    def loop(self) -> TimedLoop:
        """The world's loop."""

    def is_cut(self, first: str, second: str) -> bool:
        """Whether two nodes can't reach each other."""

    def link_between(self, first: str, second: str) -> WireLink:
        """Return the settings that apply between two nodes."""


class WireEnd(Protocol):
    """One of the two ends of a connection."""

    node: str
    context: Context

    def receive(self, data: bytes) -> None:
        """Handle received data; `END` is end-of-file."""

    def mark_lost(self, error: Exception) -> None:
        """Record that the connection is lost."""

    def end(self) -> None:
        """Send and receive nothing any more: its process has ended."""

    @property
    def has_more(self) -> bool:
        """Whether it has unsent bytes."""

    def send_more(self) -> None:
        """Send pending data, if the window allows."""


class Wire:
    """One direction of a connection.

    Args:
        label: its name in the history.
    """

    def __init__(self, network: WireNetwork, label: str, source: WireEnd, target: WireEnd) -> None:
        self.source = source
        self.target = target
        self.is_encrypted = False
        """Whether its bytes are encrypted, with random numbers outside of the seed."""
        self._network = network
        self._label = label
        self._in_transit: deque[bytes | Exception | None] = deque()
        self._paused_items: deque[bytes | Exception] = deque()
        self._arrives_us = 0
        self._free_us = 0
        self._unacknowledged_bytes = 0
        self._dead = False
        self._timeout_us = 0

    @property
    def room_bytes(self) -> int:
        """The open part of the window."""
        return max(0, _WINDOW_BYTES - self._unacknowledged_bytes)

    def send(self, item: bytes | Exception) -> None:
        """Send data, `END`, or a reset."""
        link = self._network.link_between(self.source.node, self.target.node)
        most = link.max_segment_bytes
        if most is not None and isinstance(item, bytes) and len(item) > most:
            for begin in range(0, len(item), most):
                self.send(item[begin : begin + most])
            return
        if isinstance(item, bytes):
            self._unacknowledged_bytes += len(item)
        if self._dead or self._network.is_cut(self.source.node, self.target.node):
            self._pause_item(item)
        else:
            self._send(item, link)

    def acknowledge(self, size: int) -> None:
        """Open the window: the other end has read so many bytes."""
        self._unacknowledged_bytes -= size
        if self.source.has_more:
            source = self.source
            self._network.loop.call_soon(source.send_more, context=source.context)

    def send_held(self) -> None:
        """Send held segments: the partition has ended."""
        if self._dead:
            return
        paused_items, self._paused_items = self._paused_items, deque()
        link = self._network.link_between(self.source.node, self.target.node)
        for item in paused_items:
            self._send(item, link)

    def cut(self) -> None:
        """Drop all segments without an error: the peer is lost."""
        self._dead = True

    def drop(self) -> None:
        """Drop the segments sent so far."""
        self._paused_items.clear()
        self._in_transit = deque([None] * len(self._in_transit))

    @property
    def is_dead(self) -> bool:
        """Whether all segments are dropped."""
        return self._dead

    def _send(self, item: bytes | Exception, link: WireLink) -> None:
        network = self._network
        size = len(item) if isinstance(item, bytes) else 0
        now_us = network.clock.now_us
        # The time to send the segment.
        self._free_us = max(self._free_us, now_us) + round(size * link.us_per_byte)
        # Segments arrive in order, whatever the delays are.
        arrives_us = max(self._arrives_us, self._free_us + link.delay_us())
        if size and link.is_lost():
            network.history.record("lost", self._label)
            item = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            source = self.source
            network.loop.call_at_us(arrives_us, source.mark_lost, item, context=source.context)
        self._arrives_us = arrives_us
        self._in_transit.append(item)
        network.loop.call_at_us(arrives_us, self._arrive, context=self.target.context)

    def _arrive(self) -> None:
        item = self._in_transit.popleft()
        if self._dead or item is None:
            return
        if isinstance(item, Exception):
            self._network.history.record("reset", self._label)
            self.target.mark_lost(item)
            return
        kind = "data" if item else "end"
        self._network.history.record(kind, self._label, item, hashed=not self.is_encrypted)
        self.target.receive(item)

    def _pause_item(self, item: bytes | Exception) -> None:
        if not self._paused_items:
            loop = self._network.loop
            self._timeout_us = self._network.clock.now_us + round(
                RETRANSMISSION_TIMEOUT_S * US_PER_S
            )
            loop.call_at_us(self._timeout_us, self._time_out, context=self.source.context)
        self._paused_items.append(item)

    def _time_out(self) -> None:
        if self._paused_items and self._network.clock.now_us >= self._timeout_us:
            self._network.history.record("gave up", self._label)
            self._paused_items.clear()
            self.source.mark_lost(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))


_HIGH_WATER_BYTES = 64 * 1024


class VirtualTransport(asyncio.Transport):
    """Sends by one wire and receives by another.

    Args:
        node: the owner of this end.
        protocol: None until `begin`.
        extra: the data of `get_extra_info`.
        on_lost: called once the connection is lost.
        context: the context in which the protocol is called.
    """

    _start_tls_compatible = True

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: str,
        protocol: asyncio.BaseProtocol | None,
        extra: Mapping[str, Any],
        on_lost: Callable[[], None],
        context: Context,
    ) -> None:
        super().__init__(dict(extra))
        self.context = context
        self.node = node
        self.number: int
        self.outgoing: Wire
        self.incoming: Wire
        self._loop = loop
        self._protocol: Any = protocol
        self._on_lost = on_lost
        self._unsent = bytearray()
        self._undelivered: deque[bytes] = deque()
        self._reading = True
        self._closing = False
        self._lost = False
        self._error: Any = None
        self._has_unread = False
        """Whether it has data that will stay unread: Linux resets such a connection on closing."""
        self._eof_sent = False
        self._eof_requested = False
        self._protocol_paused = False
        self._high_bytes = _HIGH_WATER_BYTES
        self._low_bytes = _HIGH_WATER_BYTES // 4

    def __hash__(self) -> int:
        return self.number  # the address would give sets another order in each run

    def __repr__(self) -> str:
        state = "closed" if self._lost else "closing" if self._closing else "open"
        return f"<VirtualTransport of {self.node} {state}>"

    @property
    def has_started(self) -> bool:
        """Whether it has a protocol."""
        return self._protocol is not None

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol, and deliver received data or a loss to it."""
        self._protocol = protocol
        self._detect_encryption(protocol)
        protocol.connection_made(self)
        if self._lost:
            self._loop.call_soon(protocol.connection_lost, self._error, context=self.context)
        elif self._undelivered:
            self._loop.call_soon(self._feed_undelivered, context=self.context)

    # Writing.

    def write(self, data: Any) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data: a bytes-like object is needed, not {type(data).__name__!r}")
        if self._eof_requested:
            raise RuntimeError("write() after write_eof()")
        if self._closing or not data:
            return
        data = bytes(data)
        if not self._unsent and len(data) <= self.outgoing.room_bytes:
            self.outgoing.send(data)
            return
        self._unsent += data
        self.send_more()
        if len(self._unsent) > self._high_bytes and not self._protocol_paused:
            self._protocol_paused = True
            self._call(self._protocol.pause_writing)

    def write_eof(self) -> None:
        if not self._eof_requested:
            self._eof_requested = True
            self.send_more()

    def can_write_eof(self) -> bool:
        return True

    @property
    def has_more(self) -> bool:
        """Whether it has unsent bytes."""
        return bool(self._unsent)

    def send_more(self) -> None:
        """Send as much as the window allows."""
        if self._lost:
            return
        if self._unsent and (space := self.outgoing.room_bytes):
            self.outgoing.send(bytes(self._unsent[:space]))
            del self._unsent[:space]
        if self._protocol_paused and len(self._unsent) <= self._low_bytes:
            self._protocol_paused = False
            self._call(self._protocol.resume_writing)
        if self._unsent:
            return
        if self._closing:
            self._close_socket(None)
        elif self._eof_requested:
            self._send_eof()

    def _send_eof(self) -> None:
        if not self._eof_sent:
            self._eof_sent = True
            self.outgoing.send(END)

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not 0 <= low <= high:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_bytes, self._low_bytes = high, low

    # Reading.

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if self._reading or self._closing:
            return
        self._reading = True
        self._loop.call_soon(self._feed_undelivered, context=self.context)

    def receive(self, data: bytes) -> None:
        """Handle received data."""
        if self._closing:
            if data and self._unsent:
                self._has_unread = True
            elif data:
                self._reset_peer()
            return
        self._undelivered.append(data)
        if self._reading and self._protocol is not None:
            self._feed_undelivered()

    def _feed_undelivered(self) -> None:
        while self._undelivered and self._reading and not self._closing:
            data = self._undelivered.popleft()
            if data == END:
                self._handle_eof()
            else:
                self.incoming.acknowledge(len(data))
                self._call(self._feed, data)

    def _feed(self, data: bytes) -> None:
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(data)
            return
        while data and not self._closing:
            space: Any = self._protocol.get_buffer(len(data))
            count = min(len(space), len(data))
            if not count:
                raise RuntimeError("get_buffer() returned an empty buffer")
            space[:count] = data[:count]
            self._protocol.buffer_updated(count)
            data = data[count:]

    def _handle_eof(self) -> None:
        if not self._call(self._protocol.eof_received):
            self.close()

    # Closing.

    @property
    def is_lost(self) -> bool:
        """Whether `connection_lost` was called, or is scheduled."""
        return self._lost

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._stop_reading()
            self.send_more()

    def abort(self) -> None:
        self._abort(None)

    def _force_close(self, error: BaseException | None) -> None:
        """Called by asyncio's TLS when a handshake fails."""
        self._abort(error)

    def mark_lost(self, error: Exception) -> None:
        """Record that the connection is lost, without notifying the peer."""
        if not self._lost:
            self._closing = True
            self._unsent.clear()
            self._loop.call_soon(self._finish, error, context=self.context)

    def end(self) -> None:
        """Send and receive nothing any more: its process has ended."""
        self._lost = True

    def _abort(self, error: BaseException | None) -> None:
        if not self._lost:
            self._stop_reading()
            self._unsent.clear()
            self._close_socket(error)

    def _stop_reading(self) -> None:
        self._closing = True
        self._has_unread = self._has_unread or any(self._undelivered)
        self._undelivered.clear()

    def _close_socket(self, error: BaseException | None) -> None:
        """Abort as Linux does: without unread data, the peer sees a mere end-of-file."""
        if self._has_unread:
            self._reset_peer()
        else:
            self._send_eof()
        self._loop.call_soon(self._finish, error, context=self.context)

    def _reset_peer(self) -> None:
        # Linux's errors: a broken pipe after an end-of-file.
        number = errno.EPIPE if self._eof_sent else errno.ECONNRESET
        self._has_unread = False
        self._eof_sent = True
        self.outgoing.send(OSError(number, os.strerror(number)))

    def _finish(self, error: BaseException | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._undelivered.clear()
        self._error = error
        self._on_lost()
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._detect_encryption(protocol)

    def _detect_encryption(self, protocol: asyncio.BaseProtocol) -> None:
        """Mark the wires of a TLS connection, whose bytes the seed does not decide."""
        if isinstance(protocol, sslproto.SSLProtocol):
            self.outgoing.is_encrypted = self.incoming.is_encrypted = True

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the protocol; if it raises, abort the connection, as a selector transport does."""
        try:
            return function(*arguments)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler(
                {
                    "message": f"{function.__qualname__} of a protocol failed",
                    "exception": error,
                    "transport": self,
                    "protocol": self._protocol,
                }
            )
            self._abort(error)
            return None
