"""What all jobs give: rows of several tables in one stream, told apart by the column `table`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from purgatory.live.live_rows import BAD_ROW

ASIDE = "aside"
"""The table of rows that were set aside, in counts."""

ASIDE_COLUMNS = {"source": "string", "reason": "string", "rows": "bigint", "example": "string"}
"""The columns of the table `aside`: how many rows of which source were set aside, and why."""

_PANDAS = {"bigint": "Int64", "int": "Int32", "double": "Float64", "timestamp": "datetime64[us]"}


def ddl(columns: Mapping[str, str]) -> str:
    """Return columns in Spark's words."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def frame(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    """Return rows with all of these columns, null where a row has none, whole numbers exact."""
    return pd.DataFrame(
        {
            name: pd.Series([row.get(name) for row in rows], dtype=_PANDAS.get(kind, object))
            for name, kind in columns.items()
        }
    )


def aside(source: str, reason: str, rows: int, example: str | None, run_id: str) -> dict[str, Any]:
    """Return a row of the table `aside`."""
    return {
        "table": ASIDE,
        "run_id": run_id,
        "source": source,
        "reason": reason,
        "rows": rows,
        "example": example,
    }


def bad_rows(source: str, part: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows of `aside` for those that have a `problem`."""
    bad = part[part["problem"].notna()]
    return [
        aside(source, f"{BAD_ROW}: {problem}", len(rows), rows["example"].iloc[0], "")
        for problem, rows in bad.groupby("problem")
    ]


def time_of(us: int) -> pd.Timestamp:
    """Return a time given in microseconds since 1970."""
    return pd.Timestamp(us, unit="us")
