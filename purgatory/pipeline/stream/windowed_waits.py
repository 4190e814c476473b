"""Windowed waits and expiry ratios of operations, per run, purgatory and kind.

State: the open windows of a run, purgatory and kind, in the state store. A timer closes a window
when the watermark has passed its end. A row of a closed window is late: it changes no result, and
is counted in the table `quarantine`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from purgatory.pipeline.jobs.registry import STREAM
from purgatory.pipeline.stream.rows import (
    LATE,
    QUARANTINE_COLUMNS,
    bad_rows,
    ddl,
    frame,
    pack_by,
    quarantine_row,
    time_of,
    unpack_rows,
    with_watermark,
)
from purgatory.trace.percentiles import PERCENTILES, percentiles
from purgatory.trace.rounded_waits import round_array

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed", "pending")
"""The outcomes that have a column; others count in `operations` only."""

PERCENTILE_COLUMNS = ("wait_p50_us", "wait_p95_us", "wait_p99_us")
"""Some of `purgatory.trace.percentiles.PERCENTILES`."""

WAITS_COLUMNS = {
    "run_id": "string",
    "purgatory": "string",
    "kind": "string",
    "window_start": "timestamp",
    "window_end": "timestamp",
    "operations": "bigint",
    **dict.fromkeys(OUTCOMES, "bigint"),
    "expiry_ratio": "double",
    "wait_mean_us": "double",
    "wait_max_us": "bigint",
    **dict.fromkeys(PERCENTILE_COLUMNS, "double"),
}
"""The columns of the table `waits`."""

_OUT = {"table": "string", **WAITS_COLUMNS, **QUARANTINE_COLUMNS}
_KEYS = ["run_id", "purgatory", "kind"]

# One window


class WaitWindow:
    """Counts of operations by outcome, and a histogram of their waits.

    Waits are rounded by `rounded_waits`, so that the histogram is small however many operations
    there are: a percentile is at most 0.1 % too small.
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
        for wait, count in zip(*np.unique(round_array(waits), return_counts=True), strict=True):
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
        values = percentiles(self._waits, self.max_us, shares)
        return dict(zip(PERCENTILE_COLUMNS, values, strict=True))

    def to_state(self) -> list[Any]:
        """Return it as plain data for JSON."""
        return [self.outcomes, self.sum_us, self.max_us, list(self._waits.items())]

    @classmethod
    def from_state(cls, state: list[Any]) -> Self:
        """Return the window of `to_state`."""
        window = cls()
        window.outcomes, window.sum_us, window.max_us, waits = state
        window._waits = dict(waits)
        return window


def windows_to_text(windows: Mapping[int, WaitWindow]) -> str:
    """Return open windows, by their start, as text for the state store."""
    values = [[start_us, window.to_state()] for start_us, window in windows.items()]
    return json.dumps(values, separators=(",", ":"))


def windows_from_text(text: str) -> dict[int, WaitWindow]:
    """Return the windows of `windows_to_text`."""
    return {start_us: WaitWindow.from_state(state) for start_us, state in json.loads(text)}


# The stateful processor


def windowed_waits(operations: DataFrame, *, window_us: int, watermark_delay_us: int) -> DataFrame:
    """Return the waits of the operations that ended in each window.

    Shuffles operations by run, purgatory and kind; one such group is the work of one task.

    Args:
        operations: of `rows.rows_of`.
        window_us: the length of a window, in microseconds: whole milliseconds.
        watermark_delay_us: the distance of the watermark from the newest row, in microseconds.

    Returns:
        A stream in append mode, of two tables by its column `table`: `waits`, with `WAITS_COLUMNS`,
        a row per window when it is closed; and `quarantine`, with `QUARANTINE_COLUMNS`.

    Raises:
        ValueError: the window is not of whole milliseconds.
    """
    STREAM.options["window_us"].check("window_us", window_us)
    good = f.col("problem").isNull()
    rows = with_watermark(operations, watermark_delay_us).select(
        *(f.when(good, f.col(name)).otherwise("").alias(name) for name in _KEYS),
        (f.col("event_us") - f.pmod("event_us", f.lit(window_us))).alias("start_us"),
        "outcome",
        "wait_us",
        "problem",
        "example",
    )
    return (
        pack_by(rows, _KEYS)
        .groupBy(*_KEYS)
        .transformWithStateInPandas(
            _Waits(window_us), ddl(_OUT), outputMode="append", timeMode="eventTime"
        )
    )


class _Waits(StatefulProcessor):
    def __init__(self, window_us: int) -> None:
        self._window_us = window_us

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("windows", "windows string")

    def handleInputRows(  # noqa: N802 (the name is Spark's)
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        watermark_us = timerValues.getCurrentWatermarkInMs() * 1_000
        windows = self._load()
        results: list[dict[str, Any]] = []
        all_rows = unpack_rows(rows)
        results += bad_rows("operations", all_rows)
        good = all_rows[all_rows["problem"].isna()]
        is_late = good["start_us"] + self._window_us <= watermark_us
        results += _late(key, good[is_late])
        for start_us, of_window in good[~is_late].groupby("start_us"):
            if start_us not in windows:
                windows[start_us] = WaitWindow()
                self._handle.registerTimer((start_us + self._window_us) // 1_000)
            windows[start_us].add(of_window)
        self._store(windows)
        if results:
            yield frame(results, _OUT)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        end_us = expiredTimerInfo.getExpiryTimeInMs() * 1_000
        windows = self._load()
        window = windows.pop(end_us - self._window_us, None)
        if window is None:
            return
        self._store(windows)
        row = {
            "table": "waits",
            **dict(zip(_KEYS, key, strict=True)),
            "window_start": time_of(end_us - self._window_us),
            "window_end": time_of(end_us),
            **window.result(),
        }
        yield frame([row], _OUT)

    def close(self) -> None:
        pass

    def _load(self) -> dict[int, WaitWindow]:
        state = self._state.get() if self._state.exists() else None
        return {} if state is None else windows_from_text(state[0])

    def _store(self, windows: dict[int, WaitWindow]) -> None:
        if windows:
            self._state.update((windows_to_text(windows),))
        else:
            self._state.clear()


def _late(key: Any, late: pd.DataFrame) -> list[dict[str, Any]]:
    if late.empty:
        return []
    last = time_of(int(late["start_us"].max())).isoformat()
    example = f"{key[1]} of {key[2]}, in the window of {last}"
    return [quarantine_row("operations", LATE, len(late), example, key[0])]
