"""A captured change as a record: the key that its partition follows from, and Maxwell's JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from purgatory.changes.capture.json_text import json_text
from purgatory.changes.capture.position import Place, Position

Row = Mapping[str, Any]


class RowChange(NamedTuple):
    """One row's change, before it is known where its transaction ends.

    Args:
        kind: insert, update, delete, or bootstrap-insert.
        ts: when, in seconds since 1970.
        data: the row: after the change; of a deletion, before it.
        old: what an update replaced.
        primary_key: names of its columns, in the table's order; empty where there is none.
    """

    kind: str
    database: str
    table: str
    ts: int
    data: Row
    old: Row | None
    primary_key: Sequence[str]


class CapturedRecord(NamedTuple):
    """What is produced: into its key's partition, or into all of them when there is no key."""

    key: bytes | None
    value: bytes
    place: Place


def split_key_change(change: RowChange) -> list[RowChange]:
    """Make of an update that changed its row's key a deletion and an insertion.

    They go to different partitions, each in order with what else became of its key.
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
    """Return the record of one row's change.

    Args:
        position: where its transaction ends.
        xoffset: its number within the transaction.
        xid: the transaction; None for rows of a snapshot.
        commit: whether it is the transaction's last.
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
    place = Place(position.number, xoffset)
    return CapturedRecord(_key(change), json_text(document).encode(), place)


def _key(change: RowChange) -> bytes:
    # Rows without a key have their table's: all of them in one partition, in order.
    key = {"database": change.database, "table": change.table}
    key.update((f"pk.{name}", change.data[name]) for name in change.primary_key)
    return json_text(key).encode()


def broadcast_record(
    kind: str, position: Position, xoffset: int, ts: int, **fields: Any
) -> CapturedRecord:
    """Return a record that every partition gets: of a schema's change, or of the log itself."""
    document = {
        "type": kind,
        **{name: value for name, value in fields.items() if value is not None},
        "ts": ts,
        "xoffset": xoffset,
        "position": str(position),
    }
    return CapturedRecord(None, json_text(document).encode(), Place(position.number, xoffset))


def with_partition(value: bytes, partition: int, partitions: int) -> bytes:
    """Return a broadcast record's value for one partition: no two records have the same."""
    return value[:-1] + b',"partition":%d,"partitions":%d}' % (partition, partitions)
