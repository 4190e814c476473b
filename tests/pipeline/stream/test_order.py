"""The live audit as a stream: what was injected is found, once, whatever is stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.errors import FaultError
from purgatory.pipeline.stream.metrics import StreamMetrics
from purgatory.pipeline.stream.rows import RecordStreams
from tests.pipeline.stream.conftest import Feed, Row
from tests.pipeline.stream.sample_rows import SECOND_US, in_batches, random_log
from tests.pipeline.stream.test_windowed_waits import rows_in, run_once

TIMES = {"watermark_delay_us": 1 * SECOND_US, "state_ttl_us": 2 * SECOND_US}


def of_anomaly(rows: list[Row]) -> dict[str, int]:
    """How many of each."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row["anomaly"]] += row["count"]
    return dict(counts)


@pytest.mark.timeout(900)
def test_injected_anomalies_are_found_exactly_through_a_stop_and_a_failure(
    spark: SparkSession, records: RecordStreams, feed: Feed, tmp_path: Path
) -> None:
    logs = [random_log(seed, 300, partition=seed) for seed in (0, 1)]
    expected: Counter[str] = Counter()
    for log in logs:
        expected.update(log.expected)
    batches = list(zip(*(in_batches(log, 6) for log in logs), strict=True))
    out = tmp_path / "out"
    after_results = StreamMetrics.batch_done

    def fail(metrics: StreamMetrics, query: str, progress: Mapping[str, Any], batch: int) -> None:
        if query == "order":
            raise RuntimeError("as if killed after a batch's results, before its commit")
        after_results(metrics, query, progress, batch)

    for number, batch in enumerate(batches):
        feed("sends", [row for sends, _ in batch for row in sends])
        feed("reads", [row for _, reads in batch for row in reads])
        if number == 2:
            run_once(spark, records, out, **TIMES)  # and is stopped
        if number == 4:
            written = len(rows_in(out / "order"))
            with patch.object(StreamMetrics, "batch_done", fail), pytest.raises(FaultError):
                run_once(spark, records, out, **TIMES)
            assert len(rows_in(out / "order")) > written
    # A reader that sends nothing moves the time on, past all that is remembered.
    far = {**batches[-1][0][1][-1], "time_us": 10**10, "value_id": 5, "partition": 9}
    feed("reads", [far])
    feed("reads", [{**far, "time_us": 10**10 + SECOND_US}])
    metrics = run_once(spark, records, out, **TIMES)
    rows = rows_in(out / "order")
    assert of_anomaly(rows) == dict(expected)
    assert rows_in(out / "quarantine" / "order") == []
    counted: Counter[str] = Counter()
    for metric in metrics.registry.collect():
        for sample in metric.samples:
            if sample.name == "purgatory_live_anomalies_total":
                counted[sample.labels["anomaly"]] += int(sample.value)
    assert counted == expected
