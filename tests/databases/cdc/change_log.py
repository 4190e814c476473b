"""Change logs for tests: written by hand, or from a seed with the rows that must come out."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from purgatory.cdc import Record, Target, open_target

TOPIC = "changes"
Rows = dict[int, dict[str, Any]]


def record(offset: int, *, partition: int = 0, **fields: Any) -> Record:
    """A record of Maxwell's JSON, of the table shop.orders with the key id by default."""
    document = {
        "database": "shop",
        "table": "orders",
        "type": "insert",
        "ts": 1_763_683_200,
        "primary_key_columns": ["id"],
        **fields,
    }
    return Record(TOPIC, partition, offset, None, json.dumps(document).encode())


def raw(offset: int, value: bytes | None, *, partition: int = 0) -> Record:
    """A record of any bytes."""
    return Record(TOPIC, partition, offset, None, value)


def random_log(seed: int, number: int, keys: int = 20) -> tuple[list[Record], Rows]:
    """Changes of one partition that follow from each other, and the rows after them.

    Their transactions have three changes each.
    """
    chance = random.Random(seed)
    rows: Rows = {}
    records = []
    for offset in range(number):
        key = chance.randrange(keys)
        fields: dict[str, Any] = {
            "xid": offset // 3 + 1,
            "xoffset": offset % 3,
            "position": f"binlog.000001:{offset // 3 * 1000 + 4}",
        }
        if offset % 3 == 2 or offset == number - 1:
            fields["commit"] = True
        before = rows.get(key)
        if before is None:
            rows[key] = {"id": key, "name": _name(chance), "amount": chance.randrange(1000)}
            fields.update(type="insert", data=rows[key])
        elif chance.random() < 0.3:
            fields.update(type="delete", data=rows.pop(key))
        elif chance.random() < 0.2 and (new := chance.randrange(keys)) not in rows:
            after = {**rows.pop(key), "id": new}
            rows[new] = after
            fields.update(type="update", data=after, old={"id": key})
        else:
            rows[key] = {**before, "amount": chance.randrange(1000)}
            fields.update(type="update", data=rows[key], old={"amount": before["amount"]})
        records.append(record(offset, **fields))
    return records, rows


def _name(chance: random.Random) -> str:
    return chance.choice(["Ada", "Bo", "Çelik", "Дана", "李", "O'Neil", '"q"', "%s", ""])


@contextmanager
def closing_target(url: str) -> Iterator[Target]:
    """A target that is closed at the end of the block."""
    target = open_target(url)
    try:
        yield target
    finally:
        target.close()


def rows_of(target: Target, table: str = "orders") -> list[dict[str, Any]]:
    """All rows of a table, by its key; its columns in the order of their names."""
    found = target.table(table)
    assert found is not None, f"there is no table {table}"
    names = sorted(found.columns)
    columns = ", ".join(f'"{name}"' for name in names)
    key = ", ".join(f'"{name}"' for name in found.primary_key)
    rows = target._run(f'SELECT {columns} FROM "{table}" ORDER BY {key}')
    return [dict(zip(names, row, strict=True)) for row in rows.fetchall()]


def as_list(rows: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows that must come out, in the form of `rows_of`."""
    return [dict(sorted(rows[key].items())) for key in sorted(rows)]


def quarantined(target: Target) -> list[tuple[int, str]]:
    """Offset and reason of quarantined changes."""
    return [(row[2], row[3]) for row in target.select_own("purgatory_quarantine")]


def cut(records: Sequence[Record], chance: random.Random) -> list[Sequence[Record]]:
    """Records in batches as they might come: cut anywhere, some again, some with more behind."""
    batches = []
    start = 0
    while start < len(records):
        end = min(len(records), start + chance.randrange(1, 40))
        back = max(0, start - chance.choice([0, 0, 0, 5, 50]))
        batches.append(records[back:end])
        start = end
    return batches
