"""The events of a virtual world: the last ones as text, and all of them in one hash.

Two runs with equal hashes took the same decisions at the same times, and sent the same bytes.

Ground rules: only the world's own thread touches it.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from purgatory.virtual.clocks import INITIAL_UPTIME_US, US_PER_S, WorldClock

_MAX_EVENTS = 20_000


class Event(NamedTuple):
    """One event.

    Args:
        at_us: in microseconds since the world began.
        text: its nodes and details.
        data: the bytes sent.
    """

    at_us: int
    kind: str
    text: str
    data: bytes

    def __str__(self) -> str:
        size = f"  {len(self.data)} bytes" if self.data else ""
        return f"{self.at_us / US_PER_S:14.6f} s  {self.kind:<9} {self.text}{size}"


class History:
    """Records events, hashes all of them, and keeps the last ones."""

    def __init__(self, clock: WorldClock) -> None:
        self._clock = clock
        self._hash = hashlib.blake2b(digest_size=16)
        # The fields of an `Event`, since few of them are ever shown.
        self._last: deque[tuple[int, str, str, bytes]] = deque(maxlen=_MAX_EVENTS)
        self.events = 0

    def record(self, kind: str, text: str, data: bytes = b"", hashed: bool = True) -> None:
        """Record an event.

        Args:
            hashed: False excludes the data from the hash, as the seed doesn't decide it (TLS).
        """
        at_us = self._clock.now_us - INITIAL_UPTIME_US
        self.events += 1
        self._last.append((at_us, kind, text, data))
        if hashed:
            self._hash.update(f"{at_us} {kind} {text} {len(data)}\n".encode() + data)
        else:
            self._hash.update(f"{at_us} {kind} {text} \n".encode())

    @property
    def digest(self) -> str:
        """The hash of all events so far, in hexadecimal."""
        return self._hash.hexdigest()

    def last(self, count: int = 40) -> Iterator[Event]:
        """The last events, the oldest first, at most as many as are kept. O(count)."""
        newest = list(islice(reversed(self._last), count))
        for fields in reversed(newest):
            yield Event(*fields)


# Frames of Kafka's protocol.

_LENGTH: Final = struct.Struct(">i")
_REQUEST: Final = struct.Struct(">hhi")
_RESPONSE: Final = struct.Struct(">i")


def lines_with_apis(events: Sequence[Event]) -> Sequence[str]:
    """Events as lines, with the names of APIs for data.

    Encrypted data, and continuations of a frame, appear as a number of bytes. O(bytes).
    """
    try:
        from kio.schema.index import api_key_map

        from purgatory.cluster.api.registry import SUPPORTED
    except ModuleNotFoundError:  # without the extra `cluster` no program speaks Kafka
        return [str(event) for event in events]
    requests: dict[tuple[str, int], str] = {}
    lines = []
    for event in events:
        names = []
        source, arrow, target = event.text.partition(" > ")
        for frame in frames_of(event.data) if event.kind == "data" and arrow else ():
            key, version, number = _REQUEST.unpack_from(frame)
            if api := requests.pop((f"{target} > {source}", _RESPONSE.unpack_from(frame)[0]), ""):
                names.append(f"{api} response")
            elif key in SUPPORTED and version in range(SUPPORTED[key][1] + 1):
                name = "".join(word.capitalize() for word in api_key_map[key].split("_"))
                requests[event.text, number] = name
                names.append(f"{name} v{version}")
        line = str(event)
        size = f"{len(event.data)} bytes"
        description = f"{', '.join(names)}, {size}" if names else size
        lines.append(line.removesuffix(size) + description if event.data else line)
    return lines


def frames_of(data: bytes) -> Iterator[bytes]:
    """Yield the frames that begin in a segment that begins with one; the last may be partial."""
    at = 0
    while len(data) - at >= _LENGTH.size + _REQUEST.size:
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length < _REQUEST.size:
            return
        yield data[at : at + length]
        at += length
