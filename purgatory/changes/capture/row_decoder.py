"""Rows of the binlog's events as changes, with the columns that the binlog itself describes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymysqlreplication.constants import FIELD_TYPE
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent

from purgatory.changes.capture.captured_records import Row, RowChange
from purgatory.changes.capture.column_values import BinlogColumn, binlog_column
from purgatory.changes.capture.errors import CaptureError

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
    """Remembers how the tables of the events that follow are described."""

    def __init__(self) -> None:
        # None stands for a sequence of MariaDB: a table of numbers without a key, and no rows.
        self._tables: dict[int, _Table | None] = {}

    def clear(self) -> None:
        """Forget all tables: a server that starts again numbers them anew."""
        self._tables = {}

    def describe(self, event: Any) -> None:
        """Take the description of a table that comes before its rows.

        Raises:
            CaptureError: it doesn't name its columns.
        """
        names = event.optional_metadata.column_name_list
        if len(names) != event.column_count:
            raise CaptureError(
                f"the binlog doesn't name the columns of {event.schema}.{event.table}: it was "
                "written before binlog_row_metadata was FULL, so begin behind it, with --snapshot"
            )
        if list(names) == _SEQUENCE:
            self._tables[event.table_id] = None
            return
        columns, names = _without_hidden(event.columns, names)
        metadata = event.optional_metadata
        key = metadata.simple_primary_key_list or list(metadata.primary_keys_with_prefix)
        try:
            described = [binlog_column(column) for column in columns]
        except CaptureError as error:
            raise CaptureError(f"{event.schema}.{event.table}: {error}") from None
        self._tables[event.table_id] = _Table(described, [names[index] for index in key])

    def rows(self, event: Any) -> Iterator[RowChange]:
        """Decode an event's rows.

        Raises:
            CaptureError: a row is not there as a whole, or a value can't be read.
        """
        if event.table_id not in self._tables:
            raise CaptureError("rows of a table that was not described before")
        table = self._tables[event.table_id]
        if table is None:
            return
        _check_whole(event)
        is_update = isinstance(event, UpdateRowsEvent)
        kind = "delete" if isinstance(event, DeleteRowsEvent) else "insert"
        for row in event.rows:
            old: Row | None = None
            if is_update:
                kind = "update"
                data = _converted(table, row["after_values"], row["after_none_sources"])
                before = _converted(table, row["before_values"], row["before_none_sources"])
                old = {name: value for name, value in before.items() if value != data[name]}
            else:
                data = _converted(table, row["values"], row["none_sources"])
            yield RowChange(
                kind, event.schema, event.table, event.timestamp, data, old, table.primary_key
            )


def _without_hidden(
    columns: Sequence[Any], names: Sequence[str]
) -> tuple[Sequence[Any], Sequence[str]]:
    """Leave out what MariaDB adds behind the columns for UNIQUE keys that are too long for one."""
    count = len(names)
    while (
        count
        and columns[count - 1].type == FIELD_TYPE.LONGLONG
        and _HASH.fullmatch(names[count - 1])
    ):
        count -= 1
    return columns[:count], names[:count]


def _check_whole(event: Any) -> None:
    for name in ("columns_present_bitmap", "columns_present_bitmap2"):
        bitmap = getattr(event, name, None)
        if bitmap is None:
            continue
        present = sum(byte.bit_count() for byte in bytes(bitmap))
        if present < event.number_of_columns:
            raise CaptureError("a row without all its columns: binlog_row_image was not FULL")


def _converted(table: _Table, values: Mapping[str, Any], none_sources: Mapping[str, str]) -> Row:
    row: dict[str, Any] = {}
    for column in table.columns:
        value = values[column.name]
        if value is not None:
            try:
                value = column.convert(value)
            except CaptureError as error:
                raise CaptureError(f"column {column.name}: {error}") from None
        elif none_sources.get(column.name) == "empty set":
            value = ""
        row[column.name] = value
    return row
