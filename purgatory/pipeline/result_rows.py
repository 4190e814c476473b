"""Rows of result tables as plain data: their order, and the formats of some values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from purgatory.trace.trace_schema import IDS

Order = tuple[tuple[str, tuple[str, ...] | None], ...]
"""Columns by which rows are sorted, by value or by the value's index in a list.

Nulls come first, and so do values that are not in the list.
"""


Row = Mapping[str, Any]
"""A row of a result table: values by column."""


def group_by(rows: Sequence[Row], column: str) -> dict[Any, list[Row]]:
    """Group rows by a column, in the order of first occurrence. O(rows)."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def negative_ids(witnesses: Sequence[Row]) -> set[int]:
    """The negative ids in rows of `witnesses`, which may stand for texts."""
    return {
        row[name]
        for witness in witnesses
        for row in (witness, *(witness["events"] or ()))
        for name in IDS & row.keys()
        if row[name] is not None and row[name] < 0
    }


def with_texts(witnesses: Sequence[Row], texts: Mapping[int, str]) -> list[Row]:
    """Rows of `witnesses` with text ids as in the files of the trace."""
    return [
        {
            **_with_row_texts(witness, texts),
            "events": [_with_row_texts(event, texts) for event in witness["events"] or ()],
        }
        for witness in witnesses
    ]


def _with_row_texts(row: Row, texts: Mapping[int, str]) -> Row:
    return {**row, **{name: texts.get(row[name], row[name]) for name in IDS & row.keys()}}


def label_waits(waits: Sequence[Row]) -> list[Row]:
    """One run's rows of the table `waits` without redundant ones, with `label` and `over_kinds`.

    In a purgatory with a single kind, only the rows over all kinds are kept, with the purgatory's
    name as label. Rows of several kinds are labelled with both. `over_kinds` marks rows over all
    kinds that have rows of single kinds beside them.
    """
    labelled: list[Row] = []
    for purgatory, rows in group_by(waits, "purgatory").items():
        by_kind = group_by(rows, "kind")
        has_kinds = len(by_kind) > 2
        for kind, kind_rows in by_kind.items():
            if kind == "all" or has_kinds:
                label = purgatory if kind == "all" else f"{purgatory} ({kind})"
                over_kinds = has_kinds and kind == "all"
                labelled += [{**row, "label": label, "over_kinds": over_kinds} for row in kind_rows]
    return labelled


def milliseconds(microseconds: float | None, digits: int = 3) -> str:
    """A time in milliseconds, as text; a dash for none."""
    return "-" if microseconds is None else f"{microseconds / 1000:,.{digits}f}"


def counted(number: int, thing: str) -> str:
    """A number of things in words."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def text(value: Any) -> str:
    """A value as readable text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return str(value)
