"""What happened in a virtual world: the last of it to be read, and all of it in one hash.

Two runs whose hashes are equal took the same decisions at the same times, and sent the same bytes.

Ground rules: only the world's own thread touches it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from purgatory.virtual.clocks import INITIAL_UPTIME_US, US_PER_S, WorldClock

_MAX_EVENTS = 20_000


class Event(NamedTuple):
    """Something that happened.

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
            hashed: False if the seed doesn't decide the data, as with TLS: then the hash doesn't
                include it.
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
        """The last events, the oldest first, at most as many as are kept."""
        events = list(self._last)
        for fields in events[max(0, len(events) - count) :]:
            yield Event(*fields)
