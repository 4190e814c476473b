"""The order in which records of several partitions take effect, and which belong together.

A `TxnGroup` is a transaction of the source (with atomicity `transaction`; with `row`, each change
is one by itself) or a schema change, of which each partition has a copy: it takes effect after all
that lies before it in any partition, and before all that lies behind it.

Ground rules
------------
* A record's place is its position in the source's binlog. Within a partition places never decrease:
  a record without one, or with an earlier one, has the place of the record before it. So the order
  of places preserves the order of each partition, and a heartbeat, a tombstone or a malformed
  record never changes the order of others.
* Groups take effect in the order of their first places, and only when they are complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from purgatory.cdc.apply.operations import Item
from purgatory.cdc.change import ROW_KINDS, Change

Place = tuple[int, int]
"""Position and number: where the binlog has a record, as far as that is known."""

START: Place = (0, 0)
_MOST = 2**62
_POSITION_BITS = 32


class Slot(NamedTuple):
    """A record at its place.

    Args:
        position: of its transaction's end; the file's number times 2**32 and the byte.
        number: its own within that.
        unit: the name of the unit that it is a part of; None: it is one by itself.
        xoffset: what tells it from the unit's other records.
        wanted: how many records the unit has, where this one says so; 0: as many as there are,
            without a hole.
    """

    item: Item
    position: int
    number: int
    unit: str | None
    xoffset: int | None
    wanted: int | None

    @property
    def place(self) -> tuple[int, int, int, int]:
        """What it is ordered by."""
        return self.position, self.number, self.item.record.partition, self.item.record.offset


@dataclass
class Unit:
    """Records that take effect together, or a part of them."""

    name: str | None
    slots: list[Slot] = field(default_factory=list)

    @property
    def changes_schema(self) -> bool:
        return self.slots[0].item.changes_schema

    @property
    def is_whole(self) -> bool:
        """Whether all of it is here. O(its length)."""
        if self.name is None:
            return True
        numbers = {slot.xoffset for slot in self.slots if slot.xoffset is not None}
        wanted = [slot.wanted for slot in self.slots if slot.wanted is not None]
        return is_whole(len(numbers), max(numbers, default=None), max(wanted, default=None))


def is_whole(count: int, highest: int | None, wanted: int | None) -> bool:
    """Whether a unit is whole, of which so many different xoffsets are here."""
    if wanted is None:
        return False
    return count >= wanted if wanted else count == (-1 if highest is None else highest) + 1


def placed(items: Iterable[Item], last: Mapping[int, Place], *, by_transaction: bool) -> list[Slot]:
    """Give records of one topic their places.

    Args:
        items: of each partition by rising offsets.
        last: the place of the record before, by partition.
        by_transaction: whether transactions are units.
    """
    before = dict(last)
    slots = []
    for item in items:
        change, partition = item.change, item.record.partition
        place = before[partition] = max(before.get(partition, START), _said(change))
        unit, xoffset, wanted = _part(change, place, partition, by_transaction)
        slots.append(Slot(item, *place, unit, xoffset, wanted))
    return slots


def _said(change: Change | None) -> Place:
    if change is None or change.position is None:
        return START
    file, byte = change.position
    position = min(file, 2**30) << _POSITION_BITS | min(byte, 2**_POSITION_BITS - 1)
    number = change.xoffset
    if number is None:
        # Maxwell leaves the number of a transaction's last change out.
        number = _MOST if change.commit else 0
    return position, max(0, min(number, _MOST))


def _part(
    change: Change | None, place: Place, partition: int, by_transaction: bool
) -> tuple[str | None, int | None, int | None]:
    """The unit, the number in it, and how many there are."""
    if change is None:
        return None, None, None
    if change.kind in ROW_KINDS:
        if not by_transaction or change.xid is None:
            return None, None, None
        number = change.xoffset
        if number is not None and not 0 <= number < _MOST:
            number = None
        wanted = 0 if number is None else number + 1
        return f"transaction {change.xid}", number, wanted if change.commit else None
    if change.copies > 1 and change.position is not None:
        return f"schema {place[0]} {place[1]}", partition, change.copies
    return None, None, None


def units_of(slots: Sequence[Slot], *, by_transaction: bool) -> list[Unit]:
    """The units of one topic's records, in the order of their first places. O(n log n).

    What does nothing joins the unit that it lies within.
    """
    units: list[Unit] = []
    named: dict[str, Unit] = {}
    for slot in sorted(slots, key=lambda slot: slot.place):
        name = slot.unit
        if name is not None and not by_transaction and name.startswith("transaction"):
            name = None
        unit = None if name is None else named.get(name)
        if unit is None and name is None and units and units[-1].name is not None:
            change = slot.item.change
            if change is None or (change.kind not in ROW_KINDS and not slot.item.changes_schema):
                unit = units[-1]
        if unit is None:
            unit = Unit(name)
            units.append(unit)
            if name is not None:
                named[name] = unit
        unit.slots.append(slot)
    return units


def ready(units: Sequence[Unit], stop_before: tuple[str, int, int] | None) -> list[Unit]:
    """The units that may take effect now: those before the first that isn't whole.

    Args:
        stop_before: topic, partition and offset of a record; its unit and all behind it wait.
    """

    def may(unit: Unit) -> bool:
        return unit.is_whole and all(slot.item.record[:3] != stop_before for slot in unit.slots)

    return list(takewhile(may, units))
