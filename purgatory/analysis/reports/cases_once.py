"""Rows of the table `audit` in which no case comes twice.

A record that is stored twice after an answer got lost is a case of two anomalies.
"""

from __future__ import annotations

from collections.abc import Sequence

from purgatory.analysis.result_rows import Row

DUPLICATE, AFTER_LOST = "duplicate", "lost_ack_duplicate"
_SAME = ("run_id", "group", "verdict", "setting")


def cases_once(audit: Sequence[Row]) -> list[Row]:
    """The rows without those of lost answers whose duplicates have a row.

    Rows of duplicates say in `after_lost` how many of them that were.
    """
    found = {_same(row) for row in audit if row["anomaly"] == DUPLICATE}
    after = {_same(row): row["count"] for row in audit if row["anomaly"] == AFTER_LOST}
    return [
        {**row, "after_lost": after.get(_same(row), 0)} if row["anomaly"] == DUPLICATE else row
        for row in audit
        if row["anomaly"] != AFTER_LOST or _same(row) not in found
    ]


def _same(row: Row) -> tuple[object, ...]:
    return tuple(row.get(name) for name in _SAME)
