"""Positions in the binlog, and of records.

A `Position` is the end of a transaction, from which the server's binlog can be read. A
`RecordPosition` identifies one record: all records of a transaction have the position of its end,
and `xoffset` numbers them from 0. Record positions grow, so the last record of a partition
determines which changes the partition has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from purgatory.cdc.capture.errors import CaptureError

_OFFSET_BITS = 32


@dataclass(frozen=True, slots=True)
class Position:
    """The end of a transaction: a binlog file, and a byte in it."""

    file: str
    offset: int

    @property
    def file_number(self) -> int:
        digits = self.file.rpartition(".")[2]
        if not digits.isascii() or not digits.isdigit():
            raise CaptureError(f"{self.file} is no binlog file: its name must end in .NUMBER")
        return int(digits)

    @property
    def number(self) -> int:
        """An integer that grows with the position; a double represents it exactly."""
        return (self.file_number << _OFFSET_BITS) | self.offset

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"


class RecordPosition(NamedTuple):
    """A record's position: the `Position.number` of its transaction, and its number there."""

    position: int
    xoffset: int


def parse_position(text: str) -> Position:
    """Parse a position such as ``binlog.000003:4711``.

    Raises:
        CaptureError: it is none.
    """
    file, colon, offset = text.rpartition(":")
    if not colon or not file or not offset.isascii() or not offset.isdigit():
        raise CaptureError(f"{text!r} is no binlog position: write FILE:OFFSET")
    position = Position(file, int(offset))
    _ = position.file_number
    return position
