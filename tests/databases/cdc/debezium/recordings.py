"""The recorded topics, and how their rows are compared."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from purgatory.cdc import Record, Target
from purgatory.cdc.column_types import ColumnType
from tests.databases.cdc.debezium.plain_values import plain

FOLDER = Path(__file__).parent / "recorded"
NAMES = tuple(sorted(path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("*.gz")))


def lines_of(name: str) -> Iterator[dict[str, Any]]:
    """The records, each with its topic, key and value."""
    with gzip.open(FOLDER / f"{name}.jsonl.gz") as lines:
        yield from map(json.loads, lines)


def _text(value: Any) -> bytes | None:
    # As Connect's converter writes it: without spaces.
    return None if value is None else json.dumps(value, separators=(",", ":")).encode()


def records_of(name: str, topic: str = "changes") -> list[Record]:
    """The records in one partition of one topic, in the order of the log."""
    return [
        Record(topic, 0, offset, _text(line["key"]), _text(line["value"]))
        for offset, line in enumerate(lines_of(name))
    ]


def expected_rows(name: str) -> dict[str, list[dict[str, Any]]]:
    """The source's rows at the end, by table."""
    return dict(json.loads((FOLDER / f"{name}.rows.json").read_text()))


def plain_rows(target: Target, table: str) -> list[dict[str, Any]]:
    """A target's rows, in the form of the recorded ones."""
    found = target.table(table)
    assert found is not None, f"there is no table {table}"
    # Python's dates end at the year 9999.
    dates = (ColumnType.DATE, ColumnType.DATETIME)
    columns = [
        f'CAST("{name}" AS TEXT)' if kind in dates else f'"{name}"'
        for name, kind in found.columns.items()
    ]
    key = ", ".join(f'"{name}"' for name in found.primary_key)
    rows = target._run(f'SELECT {", ".join(columns)} FROM "{table}" ORDER BY {key}').fetchall()
    return [dict(zip(found.columns, map(plain, row), strict=True)) for row in rows]
