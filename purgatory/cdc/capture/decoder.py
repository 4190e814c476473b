"""Row events as changes, decoded with the column metadata in the binlog itself.

mysql-replication creates its classes internally and has no hooks, so its bugs are patched here
(`repair_decoder`). `tests/databases/cdc/capture/test_capture_types.py` fails without each of
them.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymysqlreplication import row_event
from pymysqlreplication.column import Column
from pymysqlreplication.constants import FIELD_TYPE, NONE_SOURCE
from pymysqlreplication.packet import BinLogPacketWrapper
from pymysqlreplication.row_event import (
    DeleteRowsEvent,
    MetadataFieldType,
    PartialUpdateRowsEvent,
    RowsEvent,
    TableMapEvent,
    UpdateRowsEvent,
)

from purgatory.cdc.capture.charsets import charset_name
from purgatory.cdc.capture.errors import CaptureError
from purgatory.cdc.capture.mysql_json import decode_json
from purgatory.cdc.capture.records import Row, RowChange
from purgatory.cdc.capture.values import BinlogColumn, binlog_column

_ZERO = 0x800000
_EPOCH = datetime.datetime(1970, 1, 1)
_COMPRESSED = {140: FIELD_TYPE.BLOB, 141: FIELD_TYPE.VARCHAR}
"""MariaDB's types of COMPRESSED columns, and their uncompressed types."""
_KNOWN_TYPES = {**_COMPRESSED, 242: FIELD_TYPE.BLOB}
"""Types that the library doesn't know, and those it reads alike: MySQL's VECTOR is a BLOB."""


def repair_decoder() -> None:
    """Patch the library. Idempotent."""
    RowsEvent._RowsEvent__read_time2 = _read_time
    RowsEvent._RowsEvent__read_date = _read_date
    RowsEvent._RowsEvent__read_datetime = _read_old_datetime
    RowsEvent._RowsEvent__read_time = _read_old_time
    TableMapEvent._read_type_values = _read_labels
    row_event.find_charset = _find_charset
    MetadataFieldType.by_index = staticmethod(_metadata_type)
    BinLogPacketWrapper.read_binary_json = _read_json
    Column._Column__parse_column_definition = _read_column


_decoded_column = Column._Column__parse_column_definition


def _read_column(column: Any, column_type: int, packet: Any) -> None:
    """Read a column's type: the library does not know MariaDB's compressed ones.

    It reads a TIMESTAMP as signed, while MariaDB's go beyond 2038 from 11.5 on. So timestamps are
    read by `_read_time`, too.
    """
    column.is_compressed = column_type in _COMPRESSED
    column.is_timestamp = column_type == FIELD_TYPE.TIMESTAMP2
    known_type = _KNOWN_TYPES.get(column_type, column_type)
    _decoded_column(column, FIELD_TYPE.TIME2 if column.is_timestamp else known_type, packet)


def _find_charset(number: str, dbms: str = "") -> tuple[str, str, str]:
    """The library takes collations that it doesn't know for some of utf8mb4."""
    name = charset_name(int(number))
    return name, name, name


def _read_time(event: Any, column: Any) -> datetime.timedelta | datetime.datetime:
    """Read a TIME: a single signed number of the fields and the fraction; or a TIMESTAMP.

    The library uses the sign of the integral part only, which is wrong for negative fractions.
    """
    size = (column.fsp + 1) // 2
    if column.is_timestamp:
        seconds = int.from_bytes(event.packet.read(4), "big")
        microseconds = int.from_bytes(event.packet.read(size), "big") * 10 ** (6 - 2 * size)
        return _EPOCH + datetime.timedelta(seconds=seconds, microseconds=microseconds)
    raw = int.from_bytes(event.packet.read(3 + size), "big")
    integer = raw - (_ZERO << 8 * size)
    sign = -1 if integer < 0 else 1
    integer = abs(integer)
    fraction = integer & ((1 << 8 * size) - 1)
    fields = integer >> 8 * size
    return sign * datetime.timedelta(
        hours=fields >> 12 & 0x3FF,
        minutes=fields >> 6 & 0x3F,
        seconds=fields & 0x3F,
        microseconds=fraction * 10 ** (6 - 2 * size),
    )


def _read_date(event: Any) -> datetime.date | None:
    """Read a DATE; None if there is no such day, where the library fails."""
    raw = event.packet.read_uint24()
    try:
        return datetime.date(raw >> 9, raw >> 5 & 0xF, raw & 0x1F)
    except ValueError:
        return None


def _read_old_datetime(event: Any) -> datetime.datetime | None:
    """Read a DATETIME in the format of before MySQL 5.6; None if there is no such day."""
    day, time = divmod(event.packet.read_uint64(), 1_000_000)
    try:
        return datetime.datetime(
            *(day // 10_000, day // 100 % 100, day % 100),
            *(time // 10_000, time // 100 % 100, time % 100),
        )
    except ValueError:
        return None


def _read_old_time(event: Any) -> datetime.timedelta:
    """Read a TIME in the format of before MySQL 5.6, which the library reads without its sign."""
    raw = event.packet.read_int24()
    hours, rest = divmod(abs(raw), 10_000)
    value = datetime.timedelta(hours=hours, minutes=rest // 100, seconds=rest % 100)
    return -value if raw < 0 else value


def _metadata_type(number: int) -> MetadataFieldType:
    """Read unknown metadata (a VECTOR's dimensions) as those of geometries, which nothing uses.

    The library fails there, even at a table that is not captured.
    """
    is_known = number <= MetadataFieldType.VISIBILITY.value
    return MetadataFieldType(number) if is_known else MetadataFieldType.GEOMETRY_TYPE


def _read_json(packet: Any, size: int, _is_partial: bool) -> Any:
    data = packet.read(packet.read_uint_by_size(size))
    try:
        return decode_json(data)
    except ValueError as error:
        raise CaptureError(f"a JSON value can't be read: {error}") from None


def _read_labels(event: Any, length: int) -> list[list[str]]:
    """Read the labels of enums and sets, with surrogates for bytes that are not UTF-8.

    The library makes these labels empty.
    """
    packet = event.packet
    end = packet.read_bytes + length
    columns = []
    while packet.read_bytes < end:
        count = packet.read_length_coded_binary()
        labels = [packet.read_variable_length_string() for _ in range(count)]
        columns.append([label.decode("utf-8", "surrogateescape") for label in labels])
    return columns


_HASH = re.compile(r"DB_ROW_HASH_\d+")
_SEQUENCE = [
    "next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment",
    "cache_size", "cycle_option", "cycle_count",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Table:
    columns: Sequence[BinlogColumn]
    primary_key: Sequence[str]


class RowDecoder:
    """Decodes row events with the table map events before them."""

    def __init__(self) -> None:
        # None is a sequence of MariaDB: a table of numbers, which is not captured.
        self._tables: dict[int, _Table | None] = {}

    def clear(self) -> None:
        """Clear the table maps: a restarted server renumbers its tables."""
        self._tables = {}

    def describe(self, event: Any) -> None:
        """Store a table map event.

        Raises:
            CaptureError: it has no column names.
        """
        names = event.optional_metadata.column_name_list
        if len(names) != event.column_count:
            raise CaptureError(
                "the binlog doesn't name the columns: binlog_row_metadata was not FULL; begin a "
                "new topic with --snapshot"
            )
        if list(names) == _SEQUENCE:
            self._tables[event.table_id] = None
            return
        columns, names = _drop_hidden(event.columns, names)
        metadata = event.optional_metadata
        key = metadata.simple_primary_key_list or list(metadata.primary_keys_with_prefix)
        converters = [binlog_column(column) for column in columns]
        self._tables[event.table_id] = _Table(converters, [names[index] for index in key])

    def rows(self, event: Any) -> Iterator[RowChange]:
        """Decode a row event.

        Raises:
            CaptureError: a row is incomplete, or a value can't be decoded.
        """
        if event.table_id not in self._tables:
            raise CaptureError("rows of a table without a table map event")
        table = self._tables[event.table_id]
        if table is None:
            return
        if isinstance(event, PartialUpdateRowsEvent):
            raise CaptureError(
                "an UPDATE with parts of JSON values: a session's binlog_row_value_options was not "
                "empty; begin a new topic with --snapshot"
            )
        _check_complete(event, table)
        is_update = isinstance(event, UpdateRowsEvent)
        kind = "delete" if isinstance(event, DeleteRowsEvent) else "insert"
        for row in event.rows:
            old: Row | None = None
            if is_update:
                kind = "update"
                data = _convert_row(table, row["after_values"], row["after_none_sources"])
                before = _convert_row(table, row["before_values"], row["before_none_sources"])
                old = {name: value for name, value in before.items() if value != data[name]}
            else:
                data = _convert_row(table, row["values"], row["none_sources"])
            yield RowChange(
                kind, event.schema, event.table, event.timestamp, data, old, table.primary_key
            )


def _drop_hidden(
    columns: Sequence[Any], names: Sequence[str]
) -> tuple[Sequence[Any], Sequence[str]]:
    """Remove the hidden columns that MariaDB appends for long UNIQUE keys."""
    count = len(names)
    while (
        count
        and columns[count - 1].type == FIELD_TYPE.LONGLONG
        and _HASH.fullmatch(names[count - 1])
    ):
        count -= 1
    return columns[:count], names[:count]


def _check_complete(event: Any, table: _Table) -> None:
    """Check that a row has all columns after its change, and those of the key before.

    MariaDB 11.8 leaves generated columns out of both, for UPDATE and DELETE.
    """
    names = [column.name for column in table.columns]
    before = after = _absent(event.columns_present_bitmap, names)
    if isinstance(event, UpdateRowsEvent):
        after = _absent(event.columns_present_bitmap2, names)
        if after and after == before and after.isdisjoint(table.primary_key):
            raise CaptureError(
                f"an UPDATE without the values of {', '.join(sorted(after))}: the source's version "
                "doesn't log generated columns there (or binlog_row_image was NOBLOB); DROP them, "
                "or leave the table out with --only"
            )
    if not isinstance(event, DeleteRowsEvent):
        incomplete = bool(after) or not before.isdisjoint(table.primary_key)
    else:
        incomplete = not before.isdisjoint(table.primary_key or names)
    if incomplete:
        raise CaptureError(
            "a row without all its columns: binlog_row_image was not FULL; begin a new topic with "
            "--snapshot"
        )


def _absent(bitmap: bytes, names: Sequence[str]) -> set[str]:
    return {name for index, name in enumerate(names) if not bitmap[index >> 3] >> (index & 7) & 1}


def _convert_row(table: _Table, values: Mapping[str, Any], none_sources: Mapping[str, str]) -> Row:
    row: dict[str, Any] = {}
    for column in table.columns:
        value = values[column.name]
        if value is None and none_sources.get(column.name) == NONE_SOURCE.COLS_BITMAP:
            continue
        if value is not None:
            try:
                value = column.convert(value)
            except CaptureError as error:
                raise CaptureError(f"column {column.name}: {error}") from None
        elif none_sources.get(column.name) == "empty set":
            value = ""
        row[column.name] = value
    return row
