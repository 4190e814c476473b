"""The order in which records of several partitions take effect, and which belong together.

A `TxnGroup` is a transaction of the source (by row, each change is a group of its own) or a schema
change, of which each partition has a copy: it takes effect after all that lies before it in any
partition, and before all that lies behind it.

Ground rules
------------
* A record's sort key is its position in the source's binlog. Within a partition sort keys never
  decrease: a record without a position, or with an earlier one, has the key of the record before
  it. Sorting therefore preserves the order of each partition, and a heartbeat, a tombstone or a
  malformed record never changes the order of others.
* Groups take effect in the order of their first records, and only when they are complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from purgatory.cdc.apply.operations import Item
from purgatory.cdc.change import ROW_KINDS, TRANSACTION_END, Change

SortKey = tuple[int, int]
"""A position in the binlog, if known, and a number at that position."""

START: SortKey = (0, 0)
_MAX_NUMBER = 2**62
_POSITION_BITS = 32
_TRANSACTION = "transaction "
_OPEN_TRANSACTION = "open transaction "
"""The prefix of transactions whose end is the begin of the next one, in a topic of one partition.
"""


class PendingRecord(NamedTuple):
    """A record and its sort key.

    Args:
        position: the end of its transaction: the file's number times 2**32, plus the byte.
        number: its own within that position.
        group: the name of its group; None: a group of its own.
        xoffset: its number within the group.
        expected: the number of records in the group, if this record has it; 0: it is the last one
            without a number, so all numbers up to the highest are expected.
    """

    item: Item
    position: int
    number: int
    group: str | None
    xoffset: int | None
    expected: int | None

    @property
    def sort_key(self) -> tuple[int, int, int, int]:
        """The sort key, which identifies the record within its topic."""
        return self.position, self.number, self.item.record.partition, self.item.record.offset


@dataclass
class TxnGroup:
    """The records, read so far, that are applied in one transaction."""

    name: str | None
    records: list[PendingRecord] = field(default_factory=list)
    is_last: bool = True

    @property
    def changes_schema(self) -> bool:
        # A transaction may truncate tables.
        is_transaction = self.name is not None and self.name.startswith(_TRANSACTION)
        return not is_transaction and self.records[0].item.changes_schema

    @property
    def is_complete(self) -> bool:
        """Whether all records have been read. O(records)."""
        if self.name is None:
            return True
        if self.name.startswith(_OPEN_TRANSACTION):
            return not self.is_last
        numbers = {record.xoffset for record in self.records if record.xoffset is not None}
        expected = [record.expected for record in self.records if record.expected is not None]
        return is_complete(len(numbers), max(numbers, default=None), max(expected, default=None))


@dataclass(frozen=True)
class IncompleteGroup:
    """The first pending group of a topic, as long as it is incomplete: all others wait for it.

    Args:
        next_offsets: of the topic's partitions, when it was found incomplete.
        sort_key: of its first record.
        is_counted: whether it has a record that tells how many it has.
    """

    name: str
    next_offsets: Mapping[int, int]
    sort_key: tuple[int, int, int, int]
    is_counted: bool

    def stays(self, records: Iterable[PendingRecord]) -> bool:
        """Whether it is the first one, and incomplete, with these new records too. O(records)."""
        return all(
            record.sort_key > self.sort_key
            and (record.group != self.name or not (self.is_counted or record.expected is not None))
            for record in records
        )


def first_incomplete(
    groups: Sequence[TxnGroup], next_offsets: Mapping[int, int], *, is_counted: bool = False
) -> IncompleteGroup | None:
    """The first of the incomplete groups, if later records can be told not to complete it.

    Args:
        is_counted: whether records of it that are not in ``groups`` tell how many it has.
    """
    name = groups[0].name if groups else None
    if name is None or name.startswith(_OPEN_TRANSACTION):
        return None
    records = groups[0].records
    is_counted |= any(record.expected is not None for record in records)
    return IncompleteGroup(name, dict(next_offsets), records[0].sort_key, is_counted)


def is_complete(count: int, highest: int | None, expected: int | None) -> bool:
    """Whether a group with this count of distinct xoffsets, and this highest one, is complete."""
    if expected is None:
        return False
    return count >= expected if expected else count == (-1 if highest is None else highest) + 1


def assign_positions(
    items: Iterable[Item], last_positions: Mapping[int, SortKey], *, by_transaction: bool
) -> list[PendingRecord]:
    """Assign sort keys to the records of one topic.

    Args:
        items: of each partition by rising offsets.
        last_positions: of the previous record of each partition.
    """
    last_keys = dict(last_positions)
    records = []
    for item in items:
        change, partition = item.change, item.record.partition
        sort_key = last_keys[partition] = max(
            last_keys.get(partition, START), _change_position(change)
        )
        group, xoffset, expected = _group(change, sort_key, partition, by_transaction)
        records.append(PendingRecord(item, *sort_key, group, xoffset, expected))
    return records


def _change_position(change: Change | None) -> SortKey:
    if change is None or change.position is None:
        return START
    file, byte = change.position
    position = min(file, 2**30) << _POSITION_BITS | min(byte, 2**_POSITION_BITS - 1)
    number = change.xoffset
    if number is None:
        # Maxwell leaves out the number of a transaction's last change.
        number = _MAX_NUMBER if change.commit else 0
    return position, max(0, min(number, _MAX_NUMBER))


def _group(
    change: Change | None, sort_key: SortKey, partition: int, by_transaction: bool
) -> tuple[str | None, int | None, int | None]:
    """The group, the xoffset in it, and the expected number of records."""
    if change is None:
        return None, None, None
    is_truncate = by_transaction and change.xid is not None and change.kind == "table-truncate"
    if change.kind in ROW_KINDS or is_truncate:
        if not by_transaction or change.xid is None:
            return None, None, None
        number = change.xoffset
        if number is not None and not 0 <= number < _MAX_NUMBER:
            number = None
        if number is None and change.origin is not None:
            return f"{_OPEN_TRANSACTION}{change.xid}", None, None
        expected = 0 if number is None else number + 1
        return f"{_TRANSACTION}{change.xid}", number, expected if change.commit else None
    if change.kind == TRANSACTION_END and change.origin is not None:
        return f"{_TRANSACTION}{change.xid}", None, change.origin.changes
    if change.copies > 1 and change.position is not None:
        return f"schema {sort_key[0]} {sort_key[1]}", partition, change.copies
    return None, None, None


def group_records(records: Sequence[PendingRecord], *, by_transaction: bool) -> list[TxnGroup]:
    """The groups of one topic's records, in the order of their first records. O(n log n).

    A record that changes nothing joins the group that it lies within. The end of a transaction
    that came before it, in another partition, joins it, too.
    """
    groups: list[TxnGroup] = []
    by_name: dict[str, TxnGroup] = {}
    early_ends: list[PendingRecord] = []
    for record in sorted(records, key=lambda record: record.sort_key):
        name = record.group
        if name is not None and not by_transaction and name.startswith(_TRANSACTION):
            name = None
        group = None if name is None else by_name.get(name)
        if group is None:
            change = record.item.change
            if name is not None:
                if change is not None and change.kind == TRANSACTION_END:
                    early_ends.append(record)
                    continue
            elif groups and groups[-1].name is not None:
                is_row = change is not None and change.kind in ROW_KINDS
                if not is_row and not record.item.changes_schema:
                    group = groups[-1]
        if group is None:
            group = TxnGroup(name)
            groups.append(group)
            if name is not None:
                by_name[name] = group
        group.records.append(record)
    for record in early_ends:
        name = record.group or ""
        if name not in by_name:
            by_name[name] = TxnGroup(name)
            groups.append(by_name[name])
        by_name[name].records.append(record)
    for earlier in groups[:-1]:
        earlier.is_last = False
    return groups


def ready_groups(
    groups: Sequence[TxnGroup], stop_before: tuple[str, int, int] | None
) -> list[TxnGroup]:
    """The groups that can be applied: those before the first incomplete one.

    Args:
        stop_before: topic, partition and offset of a record; its group and all behind it wait.
    """
    return list(
        takewhile(
            lambda group: (
                group.is_complete
                and all(record.item.record[:3] != stop_before for record in group.records)
            ),
            groups,
        )
    )
