"""What mysql-replication's decoder gets wrong, put right where it is used.

Its classes are made inside it, so there is no place to pass in others; what is replaced is named
here, and tests/changes/test_capture_types.py fails without either.
"""

from __future__ import annotations

import datetime
from typing import Any

import pymysql
from pymysqlreplication.row_event import RowsEvent, TableMapEvent

_ZERO = 0x800000


class ConnectionLostError(Exception):
    """The connection to the source was lost."""


class Connection(pymysql.connections.Connection):  # type: ignore[misc]
    """A connection whose loss is told to the reader.

    The library connects again by itself, in the middle of a transaction, with the description of
    tables that a restarted server may have renumbered.
    """

    def __init__(self, *, db: str | None = None, **settings: Any) -> None:
        # The library still says ``db``, of which PyMySQL warns.
        super().__init__(**settings, **({} if db is None else {"database": db}))

    def _read_packet(self, *arguments: Any) -> Any:
        try:
            return super()._read_packet(*arguments)
        except pymysql.OperationalError as error:
            if error.args and error.args[0] in (2006, 2013):
                raise ConnectionLostError(str(error.args[-1])) from None
            raise


def repair_decoder() -> None:
    """Replace what is wrong in the library; again has no effect."""
    RowsEvent._RowsEvent__read_time2 = _read_time
    TableMapEvent._read_type_values = _read_labels


def _read_time(event: Any, column: Any) -> datetime.timedelta:
    """Read a TIME: one signed number of whole seconds' fields and fraction together.

    The library takes the sign of the whole part alone, which is wrong before 0 with a fraction.
    """
    size = (column.fsp + 1) // 2
    raw = int.from_bytes(event.packet.read(3 + size), "big")
    whole = raw - (_ZERO << 8 * size)
    sign = -1 if whole < 0 else 1
    whole = abs(whole)
    fraction = whole & ((1 << 8 * size) - 1)
    fields = whole >> 8 * size
    return sign * datetime.timedelta(
        hours=fields >> 12 & 0x3FF,
        minutes=fields >> 6 & 0x3F,
        seconds=fields & 0x3F,
        microseconds=fraction * 10 ** (6 - 2 * size),
    )


def _read_labels(event: Any, length: int) -> list[list[str]]:
    """Read the labels of enums and sets, keeping bytes that are not UTF-8 as surrogates.

    The library makes an empty label of these.
    """
    packet = event.packet
    end = packet.read_bytes + length
    columns = []
    while packet.read_bytes < end:
        count = packet.read_length_coded_binary()
        labels = [packet.read_variable_length_string() for _ in range(count)]
        columns.append([label.decode("utf-8", "surrogateescape") for label in labels])
    return columns
