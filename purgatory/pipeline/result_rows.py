"""Rows of result tables as plain data: their order, and how some of their values are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from purgatory.trace.trace_schema import IDS

Order = tuple[tuple[str, tuple[str, ...] | None], ...]
"""Columns by which rows are sorted, in turn: by value, or by the value's place among some.

Nulls come first, and so does a value that is none of those.
"""


Row = Mapping[str, Any]
"""A row of a result table: values by the names of its columns."""


def group_by(rows: Sequence[Row], column: str) -> dict[Any, list[Row]]:
    """Rows by their value in one column, in the order in which the values come. O(rows)."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def negative_ids(witnesses: Sequence[Row]) -> set[int]:
    """The ids in rows of the table `witnesses` that may stand for texts."""
    return {
        row[name]
        for witness in witnesses
        for row in (witness, *(witness["events"] or ()))
        for name in IDS & row.keys()
        if row[name] is not None and row[name] < 0
    }


def with_texts(witnesses: Sequence[Row], texts: Mapping[int, str]) -> list[Row]:
    """Rows of the table `witnesses` with the ids as they were in the files of the trace."""
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
    """One run's rows of the table `waits` without those that say a thing twice, with a `label`.

    `over_kinds` of a row says whether there are rows of the single kinds beside it.

    A purgatory in which one kind asks has the same figures in its rows over all kinds; only the
    latter are kept, under the purgatory's name. The rows of several kinds are named after both.
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
    """A time as text, in milliseconds; a dash for none."""
    return "-" if microseconds is None else f"{microseconds / 1000:,.{digits}f}"


def text(value: Any) -> str:
    """A value as a person writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return str(value)
