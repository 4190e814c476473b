"""`/metrics` of `purgatory stream`: its results so far, and the progress of its query.

Counters start with the results of earlier runs, so that a restart neither loses nor doubles any.

Ground rules: the threads of the query and of the server use it; `prometheus_client` has locks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from purgatory.stream.checkpoint import QUERY
from purgatory.stream.windowed_waits import OUTCOMES

ADDRESS = "127.0.0.1"
_US_PER_S = 1_000_000
_QUANTILES = {"0.5": "wait_p50_us", "0.95": "wait_p95_us", "0.99": "wait_p99_us"}


class StreamMetrics:
    """The metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        of_kind = ("purgatory", "kind")
        self._operations = Counter(
            "purgatory_live_operations",
            "Operations that ended, in closed windows.",
            (*of_kind, "outcome"),
            registry=registry,
        )
        self._expiry = Gauge(
            "purgatory_live_expiry_ratio",
            "Share of the finished operations that expired, in the last closed window.",
            of_kind,
            registry=registry,
        )
        self._waits = Gauge(
            "purgatory_live_wait_seconds",
            "How long operations waited, in the last closed window.",
            (*of_kind, "quantile"),
            registry=registry,
        )
        self._pending = Gauge(
            "purgatory_live_pending_operations",
            "How many operations waited over all brokers, in the last closed window.",
            ("purgatory", "statistic"),
            registry=registry,
        )
        self._last_end_us: dict[str, int] = {}
        self._quarantine = Counter(
            "purgatory_live_rows_quarantined",
            "Rows in quarantine: late, invalid, or with a longer wait than occupancy counts.",
            ("source", "reason"),
            registry=registry,
        )
        self._rows = Gauge(
            "purgatory_live_input_rows_per_second",
            "Input rows per second of the last batch.",
            ("query",),
            registry=registry,
        )
        self._watermark = Gauge(
            "purgatory_live_watermark_timestamp_seconds",
            "The watermark: rows from before it are late.",
            ("query",),
            registry=registry,
        )
        self._batch = Gauge(
            "purgatory_live_batch", "Number of the last batch.", ("query",), registry=registry
        )

    def add(self, table: str, rows: pa.Table) -> None:
        """Count rows of the table `waits`, `occupancy` or `quarantine`. O(rows)."""
        for row in rows.to_pylist():
            if table == "waits":
                self._add_window(row)
            elif table == "occupancy":
                self._add_sizes(row)
            else:
                self._quarantine.labels(row["source"], row["reason"]).inc(row["rows"])

    def batch_done(
        self, progress: Mapping[str, Any], batch: int, watermark_us: int, occupancy_us: int
    ) -> None:
        """Set the progress of the query.

        Args:
            progress: `StreamingQuery.lastProgress`.
            batch: the number of the last batch.
            watermark_us: the watermark after it; 0: there is none yet.
            occupancy_us: the end of the last closed window of occupancy; 0: there is none yet.
        """
        for purgatory, end_us in self._last_end_us.items():
            if end_us < occupancy_us:  # a window in which nothing waited has no row
                self._set_sizes(purgatory, 0, 0)
        self._batch.labels(QUERY).set(batch)
        self._rows.labels(QUERY).set(progress.get("inputRowsPerSecond") or 0)
        if watermark_us:
            self._watermark.labels(QUERY).set(watermark_us / _US_PER_S)

    def _add_sizes(self, row: Mapping[str, Any]) -> None:
        purgatory, end_us = row["purgatory"], round(row["window_end"].timestamp() * _US_PER_S)
        if row["broker"] is None and end_us >= self._last_end_us.get(purgatory, 0):
            self._last_end_us[purgatory] = end_us
            self._set_sizes(purgatory, row["size_mean"], row["size_max"])

    def _set_sizes(self, purgatory: str, mean: float, most: int) -> None:
        self._pending.labels(purgatory, "mean").set(mean)
        self._pending.labels(purgatory, "max").set(most)

    def _add_window(self, row: Mapping[str, Any]) -> None:
        names = (row["purgatory"], row["kind"])
        for outcome in OUTCOMES:
            self._operations.labels(*names, outcome).inc(row[outcome])
        if row["expiry_ratio"] is not None:
            self._expiry.labels(*names).set(row["expiry_ratio"])
        for quantile, column in _QUANTILES.items():
            if row[column] is not None:
                self._waits.labels(*names, quantile).set(row[column] / _US_PER_S)


@contextmanager
def serve_metrics(metrics: StreamMetrics, port: int) -> Iterator[int]:
    """Serve them until the block ends; yield the port.

    Raises:
        OSError: the port is in use.
    """
    server, thread = start_http_server(port, ADDRESS, metrics.registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
