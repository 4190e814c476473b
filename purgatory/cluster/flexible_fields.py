"""Fields of Kafka's flexible versions, as bytes: lengths are one more than they are, 0 is null, and
each structure ends with tagged fields.
"""

from __future__ import annotations

import struct
from typing import Any

NO_TAGS = b"\0"


class Writer:
    """Writes the fields of a flexible version one after the other."""

    def __init__(self) -> None:
        self.data = bytearray()

    def number(self, layout: str, *numbers: int) -> None:
        self.data += struct.pack(layout, *numbers)

    def varint(self, number: int) -> None:
        while number >= 0x80:
            self.data.append(number & 0x7F | 0x80)
            number >>= 7
        self.data.append(number)

    def length(self, length: int) -> None:
        self.varint(length + 1)

    def string(self, text: str | None) -> None:
        self.bytes(None if text is None else text.encode())

    def bytes(self, data: bytes | None) -> None:
        if data is None:
            self.varint(0)
        else:
            self.length(len(data))
            self.data += data


class Reader:
    """Reads what `Writer` wrote, or Kafka."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def raw(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def numbers(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.raw(struct.calcsize(layout)))

    def varint(self) -> int:
        number = place = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 0x7F) << place
            place += 7
            if byte < 0x80:
                return number

    def length(self) -> int:
        return self.varint() - 1

    def string(self) -> str | None:
        data = self.bytes()
        return None if data is None else data.decode()

    def bytes(self) -> bytes | None:
        length = self.length()
        return None if length < 0 else self.raw(length)

    def old_string(self) -> str:
        return self.raw(self.numbers(">h")[0]).decode()

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.raw(self.varint())
