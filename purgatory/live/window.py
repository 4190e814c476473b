"""The waits of the operations that ended in one window of time, added up as they come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas as pd

from purgatory.trace.percentiles import PERCENTILES, percentiles
from purgatory.trace.rounded_waits import rounded_array

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed", "pending")
"""The outcomes that have a column; an unknown one counts among all operations only."""

PERCENTILE_COLUMNS = ("wait_p50_us", "wait_p95_us", "wait_p99_us")
"""Those of `purgatory.trace.percentiles.PERCENTILES` that are told live."""


class WaitWindow:
    """Counts of operations by outcome, and how often each wait came.

    Waits are rounded as `rounded_waits` has it, so there are few different ones however many
    operations there are: a percentile is at most 0.1 % too small.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.sum_us = 0
        self.max_us = 0
        self._waits: dict[int, int] = {}

    def add(self, operations: pd.DataFrame) -> None:
        """Add operations: columns `outcome` and `wait_us`. O(rows)."""
        for outcome, count in operations["outcome"].value_counts().items():
            self.outcomes[str(outcome)] = self.outcomes.get(str(outcome), 0) + int(count)
        waits = operations.loc[operations["outcome"] != "pending", "wait_us"].to_numpy(np.int64)
        if not len(waits):
            return
        self.sum_us += int(waits.sum())
        self.max_us = max(self.max_us, int(waits.max()))
        for wait, count in zip(*np.unique(rounded_array(waits), return_counts=True), strict=True):
            self._waits[int(wait)] = self._waits.get(int(wait), 0) + int(count)

    def result(self) -> dict[str, Any]:
        """Return the columns of a row of the results."""
        counts = {outcome: self.outcomes.get(outcome, 0) for outcome in OUTCOMES}
        operations = sum(self.outcomes.values())
        settled = operations - counts["pending"]
        waited = settled - counts["immediate"]
        return {
            "operations": operations,
            **counts,
            "expiry_ratio": counts["expired"] / waited if waited else None,
            "wait_mean_us": self.sum_us / settled if settled else None,
            "wait_max_us": self.max_us if settled else None,
            **self._percentiles(),
        }

    def _percentiles(self) -> Mapping[str, float | None]:
        if not self._waits:
            return dict.fromkeys(PERCENTILE_COLUMNS)
        shares = [PERCENTILES[name] for name in PERCENTILE_COLUMNS]
        found = percentiles(self._waits, self.max_us, shares)
        return dict(zip(PERCENTILE_COLUMNS, found, strict=True))

    def to_state(self) -> list[Any]:
        """Return what `from_state` takes, of JSON's kinds."""
        return [self.outcomes, self.sum_us, self.max_us, list(self._waits.items())]

    @classmethod
    def from_state(cls, state: list[Any]) -> Self:
        """Return the window that was kept."""
        window = cls()
        window.outcomes, window.sum_us, window.max_us, waits = state
        window._waits = dict(waits)
        return window


def windows_to_text(windows: Mapping[int, WaitWindow]) -> str:
    """Return open windows, by their start, as text to be kept."""
    kept = [[start_us, window.to_state()] for start_us, window in windows.items()]
    return json.dumps(kept, separators=(",", ":"))


def windows_from_text(text: str) -> dict[int, WaitWindow]:
    """Return what `windows_to_text` was given."""
    return {start_us: WaitWindow.from_state(state) for start_us, state in json.loads(text)}
