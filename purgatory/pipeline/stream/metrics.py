"""`/metrics` of the live jobs: what was found so far, and how far they are.

Counters go on from what is in the results, so a restart neither loses nor doubles anything.

Ground rules: the queries' threads and the server's use it at once; the client library locks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from purgatory.pipeline.stream.rows import watermark_us
from purgatory.pipeline.stream.windowed_waits import OUTCOMES

ADDRESS = "127.0.0.1"
_US_PER_S = 1_000_000
_QUANTILES = {"0.5": "wait_p50_us", "0.95": "wait_p95_us", "0.99": "wait_p99_us"}


class LiveMetrics:
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
            "Share of the operations that waited which expired, in the last closed window.",
            of_kind,
            registry=registry,
        )
        self._waits = Gauge(
            "purgatory_live_wait_seconds",
            "How long operations waited, in the last closed window.",
            (*of_kind, "quantile"),
            registry=registry,
        )
        self._anomalies = Counter(
            "purgatory_live_anomalies",
            "Anomalies of order, duplicates and gaps.",
            ("anomaly", "group"),
            registry=registry,
        )
        self._aside = Counter(
            "purgatory_live_rows_set_aside",
            "Rows that changed no result, being late or no rows.",
            ("source", "reason"),
            registry=registry,
        )
        self._rows = Gauge(
            "purgatory_live_input_rows_per_second",
            "Rows read per second, in the last batch.",
            ("query",),
            registry=registry,
        )
        self._watermark = Gauge(
            "purgatory_live_watermark_timestamp_seconds",
            "The time up to which rows are expected no more.",
            ("query",),
            registry=registry,
        )
        self._batch = Gauge(
            "purgatory_live_batch", "The last finished batch.", ("query",), registry=registry
        )

    def add(self, table: str, rows: pa.Table) -> None:
        """Count rows of the results: of ``waits``, ``order`` or ``aside``. O(rows)."""
        add = {"waits": self._add_window, "order": self._add_anomaly, "aside": self._add_aside}
        for row in rows.to_pylist():
            add[table](row)

    def batch_done(self, query: str, progress: Mapping[str, Any], batch: int) -> None:
        """Note how far a query is.

        Args:
            query: ``waits`` or ``order``.
            progress: Spark's own account of the last batch.
            batch: its number.
        """
        self._batch.labels(query).set(batch)
        self._rows.labels(query).set(progress.get("inputRowsPerSecond") or 0)
        time_us = watermark_us(progress)
        if time_us is not None:
            self._watermark.labels(query).set(time_us / _US_PER_S)

    def _add_window(self, row: Mapping[str, Any]) -> None:
        names = (row["purgatory"], row["kind"])
        for outcome in OUTCOMES:
            self._operations.labels(*names, outcome).inc(row[outcome])
        if row["expiry_ratio"] is not None:
            self._expiry.labels(*names).set(row["expiry_ratio"])
        for quantile, column in _QUANTILES.items():
            if row[column] is not None:
                self._waits.labels(*names, quantile).set(row[column] / _US_PER_S)

    def _add_anomaly(self, row: Mapping[str, Any]) -> None:
        self._anomalies.labels(row["anomaly"], row["group"] or "").inc(row["count"])

    def _add_aside(self, row: Mapping[str, Any]) -> None:
        self._aside.labels(row["source"], row["reason"]).inc(row["rows"])


@contextmanager
def served(metrics: LiveMetrics, port: int) -> Iterator[int]:
    """Serve them until the block ends; yield the port.

    Raises:
        OSError: the port cannot be had.
    """
    server, thread = start_http_server(port, ADDRESS, metrics.registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
