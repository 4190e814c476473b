"""Kafka records of a capture: key, partition, and value as Maxwell's JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from purgatory.cdc.capture.position import Position, RecordPosition


def json_text(value: Any) -> str:
    """Write ``value`` as JSON, on one line; a `Decimal` is a number with all its digits.

    Raises:
        TypeError: a value has no JSON form.
        ValueError: a number is not finite.
    """
    write = _WRITERS.get(type(value))
    return _other(value) if write is None else write(value)


def _mapping(value: Mapping[Any, Any]) -> str:
    return "{" + ",".join([_name(name) + json_text(item) for name, item in value.items()]) + "}"


def _sequence(value: Sequence[Any]) -> str:
    return "[" + ",".join([json_text(item) for item in value]) + "]"


@lru_cache(maxsize=4096)
def _name(name: object) -> str:
    # A few column names occur in all rows.
    return encode_basestring(name.decode() if isinstance(name, bytes) else str(name)) + ":"


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no JSON number")
    return repr(value)


def _other(value: Any) -> str:
    raise TypeError(f"{type(value).__name__} has no JSON form")


_WRITERS: Mapping[type, Callable[[Any], str]] = {
    str: encode_basestring,
    int: repr,
    bool: lambda value: "true" if value else "false",
    type(None): lambda value: "null",
    float: _float,
    Decimal: lambda value: format(value, "f"),
    dict: _mapping,
    list: _sequence,
    tuple: _sequence,
}


Row = Mapping[str, Any]


class RowChange(NamedTuple):
    """A row's change, before the end of its transaction is known.

    Args:
        kind: insert, update, delete, or bootstrap-insert.
        ts: in seconds since 1970.
        data: the row after the change; for a delete, before it.
        old: an update's previous values of the changed columns.
        primary_key: its columns, in the table's order; empty if there is none.
    """

    kind: str
    database: str
    table: str
    ts: int
    data: Row
    old: Row | None
    primary_key: Sequence[str]


class CapturedRecord(NamedTuple):
    """A record to produce: into its key's partition, or into all of them if it has no key."""

    key: bytes | None
    value: bytes
    position: RecordPosition


def split_key_change(change: RowChange) -> list[RowChange]:
    """Split an update of the primary key into a delete and an insert.

    They go to different partitions, each in order with the other changes of its key.
    """
    old = change.old
    if not old or not any(name in old for name in change.primary_key):
        return [change]
    before = {**change.data, **old}
    return [
        change._replace(kind="delete", data=before, old=None),
        change._replace(kind="insert", old=None),
    ]


def row_record(
    change: RowChange, position: Position, xoffset: int, *, xid: int | None, commit: bool
) -> CapturedRecord:
    """The record of a row's change.

    Args:
        position: the end of its transaction.
        xid: None for rows of a snapshot.
        commit: whether it is the transaction's last change.
    """
    document: dict[str, Any] = {
        "database": change.database,
        "table": change.table,
        "type": change.kind,
        "ts": change.ts,
    }
    if xid is not None:
        document["xid"] = xid
    document["xoffset"] = xoffset
    if commit:
        document["commit"] = True
    document["position"] = str(position)
    document["primary_key_columns"] = list(change.primary_key)
    document["data"] = change.data
    if change.old is not None:
        document["old"] = change.old
    value = json_text(document).encode()
    return CapturedRecord(_key(change), value, RecordPosition(position.number, xoffset))


def _key(change: RowChange) -> bytes:
    # Rows of a table without a primary key are all in one partition, in order.
    key = {"database": change.database, "table": change.table}
    key.update((f"pk.{name}", change.data[name]) for name in change.primary_key)
    return json_text(key).encode()


def broadcast_record(
    kind: str, position: Position, xoffset: int, ts: int, **fields: Any
) -> CapturedRecord:
    """A record for all partitions: a schema change, or one about the log itself."""
    document = {
        "type": kind,
        **{name: value for name, value in fields.items() if value is not None},
        "ts": ts,
        "xoffset": xoffset,
        "position": str(position),
    }
    return CapturedRecord(
        None, json_text(document).encode(), RecordPosition(position.number, xoffset)
    )


def with_partition(value: bytes, partition: int, partitions: int) -> bytes:
    """A broadcast record's value for one partition: no two records have the same value."""
    return value[:-1] + b',"partition":%d,"partitions":%d}' % (partition, partitions)


_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def key_partition(key: bytes, partitions: int) -> int:
    """The partition that Kafka's Java client and Maxwell choose. O(length of the key)."""
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    length = len(data)
    value = (0x9747B28C ^ length) & _MASK
    aligned_length = length & ~3
    for start in range(0, aligned_length, 4):
        part = int.from_bytes(data[start : start + 4], "little") * _M & _MASK
        part = (part ^ part >> 24) * _M & _MASK
        value = (value * _M & _MASK) ^ part
    if length > aligned_length:
        value = (value ^ int.from_bytes(data[aligned_length:], "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15
