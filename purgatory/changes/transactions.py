"""By transaction: whole transactions of the source only, in one transaction of the target.

A transaction's records may lie in several partitions, and come in several batches. One that isn't
whole yet waits in the table `purgatory_pending` of the target, and so does what lies behind it in
its partitions: what is applied of a partition is always all that comes first, so each row's changes
stay in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from purgatory.changes.apply import Applied, BadChangeMetError, Batch, Writer, stopped
from purgatory.changes.errors import ChangesError, StoppedOnBadError
from purgatory.changes.quarantine import Quarantined
from purgatory.changes.record import Record
from purgatory.changes.statements import Item

Place = tuple[str, int]
"""A topic and a partition."""


MOST_PENDING = 100_000
"""How many records may wait for the rest of their transaction: what is longer is taken for lost."""


class _Transaction(NamedTuple):
    items: list[Item]
    whole: bool


def apply_transactions(writer: Writer, records: Iterable[Record]) -> Applied:
    """Apply records of any partitions in one transaction, as far as their transactions are whole.

    A transaction of the source is whole when its last change is there (`commit`) and all before it,
    by their `xoffset`; what has no `xid` is one by itself. O(n log n).

    Args:
        writer: over the target.
        records: of each partition by rising offsets.

    Raises:
        StoppedOnBadError: asked to stop, it met a change that can't be applied. The transactions
            before that change's own have been committed.
        Exception: what the target's driver raises; then nothing has happened.
    """
    fresh = writer.compile(records)
    writer.note_reads(fresh)
    bad: Quarantined | None = None
    while True:
        try:
            applied, met = _commit(writer, fresh, bad)
        except BadChangeMetError as error:
            bad = error.bad
            continue
        if met is not None:
            raise StoppedOnBadError(stopped(met))
        return applied


def _commit(
    writer: Writer, batch: Batch, known_bad: Quarantined | None
) -> tuple[Applied, Quarantined | None]:
    target = writer.target
    # What waits is compiled before the transaction, as the tables it needs are; it is looked at
    # again within, since another task may have applied it.
    waiting = {record[:3]: record for record in _pending(writer)}
    held = writer.compile(waiting.values())
    places = sorted({item.record[:2] for item in (*held.items, *batch.items)})
    with target.transaction():
        next_offsets = {place: target.lock_offset(*place) for place in places}
        still = {record[:3] for record in _pending(writer)}
        items = [item for item in held.items if item.record[:3] in still]
        fresh = [
            item for item in batch.items if item.record.offset >= next_offsets[item.record[:2]]
        ]
        skipped = len(batch.items) - len(fresh)
        items += fresh
        both = Batch()
        both.items = items
        both.bad = {**held.bad, **batch.bad}
        if known_bad is not None:
            both.bad.setdefault(known_bad[:3], known_bad)
        taken = _taken(items)
        met = None
        if writer.options.stop_on_bad:
            taken, met = _before_bad(taken, both)
            if met is not None:
                # Nothing that is new is taken note of, but what is applied.
                fresh = [item for item in fresh if item.record[:3] in _keys(taken)]
        ordered = [item for transaction in taken for item in transaction.items]
        applied = writer.apply_items(both, ordered)
        done = _keys(taken)
        _check_pending(items, done)
        _store(writer, items, fresh, done, next_offsets)
        waits_now = sum(item.record[:3] not in done for item in items)
        pending = waits_now - len(items) + len(fresh)
    return applied + Applied(skipped=skipped, pending=pending), met


def _check_pending(items: Sequence[Item], done: Set[tuple[str, int, int]]) -> None:
    waiting = [item for item in items if item.record[:3] not in done]
    if len(waiting) > MOST_PENDING:
        first = next((item for item in waiting if item.change and item.change.xid), waiting[0])
        topic, partition, offset = first.record[:3]
        xid = None if first.change is None else first.change.xid
        raise ChangesError(
            f"{len(waiting):,} records wait for the rest of transaction {xid}, which begins at "
            f"{topic}, partition {partition}, offset {offset}: a change of it is missing in the "
            "log; apply by row"
        )


def _keys(taken: Iterable[_Transaction]) -> set[tuple[str, int, int]]:
    return {item.record[:3] for transaction in taken for item in transaction.items}


def _pending(writer: Writer) -> list[Record]:
    return [
        Record(row[0], int(row[1]), int(row[2]), _bytes(row[3]), _bytes(row[4]))
        for row in writer.target.select_own("purgatory_pending")
    ]


def _bytes(value: object) -> bytes | None:
    return None if value is None else bytes(value)  # type: ignore[call-overload]


def _store(
    writer: Writer,
    items: Sequence[Item],
    fresh: Sequence[Item],
    done: Set[tuple[str, int, int]],
    next_offsets: Mapping[Place, int],
) -> None:
    """Keep what waits, forget what waited and is done, and store how far was read."""
    target = writer.target
    ends = dict(next_offsets)
    for item in fresh:
        place = item.record[:2]
        ends[place] = max(ends[place], item.record.offset + 1)
    new = {item.record[:3] for item in fresh}
    target.insert_own(
        "purgatory_pending", [item.record for item in fresh if item.record[:3] not in done]
    )
    for item in items:
        if item.record[:3] in done and item.record[:3] not in new:
            topic, partition, offset = item.record[:3]
            target.delete_own("purgatory_pending", topic=topic, partition=partition, offset=offset)
    waiting: dict[Place, int] = {}
    for item in items:
        if item.record[:3] not in done:
            place = item.record[:2]
            waiting[place] = min(waiting.get(place, item.record.offset), item.record.offset)
    for place, end in ends.items():
        if end != next_offsets[place]:
            target.store_offset(*place, end)
    applied_to = {place: waiting.get(place, end) for place, end in ends.items()}
    writer.note_commits([(*place, end) for place, end in applied_to.items()])


def _taken(items: Sequence[Item]) -> list[_Transaction]:
    """The transactions to apply, in order: whole ones, with nothing before them that isn't.

    Each round bars a transaction at least: O(items x rounds), and rounds are few.
    """
    transactions = _transactions(items)
    barred = {number for number, one in enumerate(transactions) if not one.whole}
    while True:
        first_barred: dict[Place, int] = {}
        for number in barred:
            for item in transactions[number].items:
                place, offset = item.record[:2], item.record.offset
                first_barred[place] = min(first_barred.get(place, offset), offset)
        behind = {
            number
            for number, one in enumerate(transactions)
            if number not in barred
            and any(
                item.record.offset > first_barred.get(item.record[:2], item.record.offset)
                for item in one.items
            )
        }
        if not behind:
            break
        barred |= behind
    return _in_order([one for number, one in enumerate(transactions) if number not in barred])


def _transactions(items: Sequence[Item]) -> list[_Transaction]:
    """Records by their transaction, in the order in which the first of each comes."""
    grouped: dict[object, list[Item]] = {}
    for item in items:
        change = item.change
        alone = change is None or change.xid is None
        key = item.record[:3] if change is None or alone else (item.record.topic, change.xid)
        grouped.setdefault(key, []).append(item)
    return [_Transaction(group, _is_whole(group)) for group in grouped.values()]


def _is_whole(group: Sequence[Item]) -> bool:
    changes = [item.change for item in group if item.change is not None]
    if not changes or changes[0].xid is None:
        return True
    last = [change for change in changes if change.commit]
    if not last:
        return False
    there = {change.xoffset for change in changes if change.xoffset is not None}
    # Maxwell leaves the last one's number out: then what comes before it must have no hole.
    end = last[0].xoffset if last[0].xoffset is not None else len(there)
    return all(number in there for number in range(end))


def _in_order(transactions: Sequence[_Transaction]) -> list[_Transaction]:
    """By their place in the binlog, where all say it; else as they came."""
    if not all(
        item.change is not None and item.change.position is not None
        for one in transactions
        for item in one.items
    ):
        return list(transactions)

    def place(one: _Transaction) -> tuple[int, int]:
        return min(_position(item) for item in one.items)

    return sorted(
        (one._replace(items=sorted(one.items, key=_xoffset)) for one in transactions),
        key=place,
    )


def _position(item: Item) -> tuple[int, int]:
    assert item.change is not None and item.change.position is not None, "looked at before"
    return item.change.position


def _xoffset(item: Item) -> float:
    assert item.change is not None, "looked at before"
    last = float("inf") if item.change.commit else 0
    return last if item.change.xoffset is None else item.change.xoffset


def _before_bad(
    taken: Sequence[_Transaction], batch: Batch
) -> tuple[list[_Transaction], Quarantined | None]:
    """The transactions before the first with a change that can't be applied, and that change."""
    for number, one in enumerate(taken):
        for item in one.items:
            bad = batch.bad.get(item.record[:3])
            if bad is not None:
                return list(taken[:number]), bad
    return list(taken), None
