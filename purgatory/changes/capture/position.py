"""Where in a server's binlog something is.

A `Position` is a place between two transactions: where a server's files may be read from. A `Place`
is that of one record: all records of a transaction have the transaction's end for a position, and
``xoffset`` numbers them from 0. Places grow as the capture goes on, which is what lets it tell,
from the last record of a partition alone, which of the changes are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from purgatory.changes.capture.errors import CaptureError

_OFFSET_BITS = 32


@dataclass(frozen=True, slots=True)
class Position:
    """The end of a transaction: a binlog file's name, and the bytes from its start."""

    file: str
    offset: int

    @property
    def file_number(self) -> int:
        """The number at the end of the file's name, which grows by one with each file."""
        digits = self.file.rpartition(".")[2]
        if not digits.isascii() or not digits.isdigit():
            raise CaptureError(f"{self.file} is no binlog file's name: it must end in .NUMBER")
        return int(digits)

    @property
    def number(self) -> int:
        """One whole number that grows with the position, and fits a double exactly."""
        return (self.file_number << _OFFSET_BITS) | self.offset

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"


class Place(NamedTuple):
    """The place of one record: its transaction's `Position.number`, and its number in it."""

    position: int
    xoffset: int


def parse_position(text: str) -> Position:
    """Read what ``str`` of a position makes, as in ``binlog.000003:4711``.

    Raises:
        CaptureError: it isn't one.
    """
    file, colon, offset = text.rpartition(":")
    if not colon or not file or not offset.isascii() or not offset.isdigit():
        raise CaptureError(f"{text!r} is no binlog position: write FILE:OFFSET")
    position = Position(file, int(offset))
    _ = position.file_number
    return position
