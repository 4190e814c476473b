"""What is in a file of a virtual disk: now, and what may be left of it when the power is cut."""

from __future__ import annotations

import random
from typing import Final, NamedTuple

BLOCK_BYTES: Final = 4096
"""What a disk writes at once: garbage is nowhere but in one of these."""


class _Change(NamedTuple):
    """What a write or a cut did: from ``at`` on there was ``before``, and the file's end."""

    at: int
    before: bytes
    written_bytes: int
    size_before: int


class DiskContents:
    """Bytes, of which those that were forced stay.

    Args:
        data: that is there, and was forced.
    """

    def __init__(self, data: bytes = b"") -> None:
        self._data = bytearray(data)
        self._unforced: list[_Change] = []

    def __len__(self) -> int:
        return len(self._data)

    def read(self, at: int, length: int) -> bytes:
        """Return what is there."""
        return bytes(self._data[at : at + length])

    def write(self, at: int, data: bytes) -> None:
        """Write; between the end so far and ``at`` there will be zeros."""
        size = len(self._data)
        before = bytes(self._data[at : at + len(data)])
        self._unforced.append(_Change(at, before, len(data), size))
        self._data += bytes(max(0, at - size))
        self._data[at : at + len(data)] = data

    def cut(self, length: int) -> None:
        """Cut it; where it is shorter, there will be zeros behind it."""
        size = len(self._data)
        if length > size:
            self.write(size, bytes(length - size))
        elif length < size:
            self._unforced.append(_Change(length, bytes(self._data[length:]), 0, size))
            del self._data[length:]

    def force(self) -> None:
        """Have all of it stay."""
        self._unforced.clear()

    def after_cut(self, chance: random.Random) -> bytes:
        """Return what a power cut leaves. O(bytes + changes that were not forced)."""
        count = len(self._unforced)
        kept = chance.choice((0, count, chance.randint(0, count)))
        data, torn = bytearray(self._data), b""
        for change in reversed(self._unforced[kept:]):
            torn = bytes(data[change.at : change.at + change.written_bytes])
            end = change.at + max(change.written_bytes, len(change.before))
            data[change.at : end] = change.before
            del data[change.size_before :]
        if kept < count and torn:
            _tear(data, self._unforced[kept].at, torn, chance)
        return bytes(data)


def _tear(data: bytearray, at: int, written: bytes, chance: random.Random) -> None:
    """Have some of a write be there, and perhaps what never was in it."""
    length = chance.randint(0, len(written))
    rest = len(written) - length
    left = written[:length]
    match chance.choice(("nothing", "nothing else", "zeros", "garbage")):
        case "nothing":
            left = b""
        case "zeros":  # the file has its new size already
            left += bytes(rest)
        case "garbage":
            to_end_of_block = BLOCK_BYTES - (at + length) % BLOCK_BYTES
            left += chance.randbytes(min(rest, to_end_of_block))
    if left:
        data += bytes(max(0, at - len(data)))
        data[at : at + len(left)] = left
