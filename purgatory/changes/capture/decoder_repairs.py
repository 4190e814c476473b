"""What mysql-replication's decoder gets wrong, put right where it is used.

Its classes are made inside it, so there is no place to pass in others; what is replaced is named
here, and tests/changes/test_capture_types.py fails without either.
"""

from __future__ import annotations

import datetime
import zlib
from typing import Any

import pymysql
from pymysqlreplication.column import Column
from pymysqlreplication.constants import FIELD_TYPE
from pymysqlreplication.event import QueryEvent
from pymysqlreplication.row_event import RowsEvent, TableMapEvent

from purgatory.changes.capture.errors import CaptureError

_ZERO = 0x800000
_COMPRESSED = {140: FIELD_TYPE.BLOB, 141: FIELD_TYPE.VARCHAR}
"""MariaDB's types of columns that are COMPRESSED, and what they are else."""


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
    if QueryEvent.__init__ is not _read_query:
        QueryEvent.__init__ = _read_query
        Column._Column__parse_column_definition = _read_column


_decoded_query = QueryEvent.__init__
_decoded_column = Column._Column__parse_column_definition


def _read_query(event: Any, packet: Any, *arguments: Any, **more: Any) -> None:
    """Read a statement, and keep its bytes as ``raw_query``.

    The library takes all of them for UTF-8, with escapes in place of what isn't.
    """
    pieces: list[bytes] = []

    def read(size: int) -> bytes:
        pieces[:] = [type(packet).read(packet, size)]
        return pieces[0]

    # The statement is the last of what is read.
    packet.read = read
    try:
        _decoded_query(event, packet, *arguments, **more)
    finally:
        del packet.read
    event.raw_query = pieces[0]


def _read_column(column: Any, column_type: int, packet: Any) -> None:
    """Read a column's type; MariaDB's compressed ones are not known to the library."""
    column.is_compressed = column_type in _COMPRESSED
    _decoded_column(column, _COMPRESSED.get(column_type, column_type), packet)


def decompressed(raw: bytes) -> bytes:
    """Return what a value of a COMPRESSED column holds.

    Its first byte is 0 before what is not compressed; else, it has 128 (zlib), how many bytes the
    length has that follows, and 8 if what is behind that has no head of zlib's.

    Raises:
        CaptureError: it was compressed in another way.
    """
    if not raw or not raw[0]:
        return raw[1:]
    try:
        if raw[0] & 0xF0 != 0x80:
            raise zlib.error(f"method {raw[0] >> 4}")
        wbits = -zlib.MAX_WBITS if raw[0] & 8 else zlib.MAX_WBITS
        return zlib.decompress(raw[1 + (raw[0] & 7) :], wbits)
    except zlib.error as error:
        raise CaptureError(f"a COMPRESSED value can't be read: {error}") from None


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
