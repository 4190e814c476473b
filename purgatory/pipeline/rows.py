"""Rows of result tables as plain data, between Spark and what shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
"""A row of a result table: values by the names of its columns."""


def grouped(rows: Sequence[Row], column: str) -> dict[Any, list[Row]]:
    """Rows by their value in one column, in the order in which the values come. O(rows)."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups
