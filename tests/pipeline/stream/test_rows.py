"""Rows from records: which are valid, of which table, and the reasons for quarantine."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.stream.rows import rows_of
from tests.pipeline.stream.sample_rows import SECOND_US, STARTED_US, Log, operation

DAY_US = 24 * 3600 * SECOND_US


def problems(
    spark: SparkSession, rows: Sequence[tuple[str, dict[str, Any]]], *tables: str
) -> list[str | None]:
    """What is wrong with each of some rows, in their order."""
    records = [(number, name, json.dumps(row)) for number, (name, row) in enumerate(rows)]
    frame = spark.createDataFrame(records, "number int, table string, value string").coalesce(1)
    return [row["problem"] for row in rows_of(frame, *tables).collect()]


def send_and_read() -> tuple[dict[str, Any], dict[str, Any]]:
    """A row of each."""
    log = Log()
    log.send(0, *log.next_of(0))
    return log.sends[0], log.reads[0]


def test_a_row_of_more_than_a_day_ahead_is_bad(spark: SparkSession) -> None:
    now_us = time.time_ns() // 1_000 - STARTED_US
    send, read = send_and_read()
    for ahead_us, problem in ((DAY_US * 9 // 10, None), (DAY_US * 11 // 10, "from the future")):
        at_us = now_us + ahead_us
        found = problems(
            spark,
            [("sends", {**send, "answer_us": at_us}), ("reads", {**read, "time_us": at_us})],
            "sends",
            "reads",
        )
        found += problems(spark, [("operations", operation(at_us))], "operations")
        assert found == [problem] * 3


def test_each_row_is_judged_by_its_own_table(spark: SparkSession) -> None:
    send, read = send_and_read()
    rows = [
        ("sends", {**send, "poll": "no number, and no column of a send"}),
        ("reads", {**read, "acks": "no number, and no column of a read"}),
        ("sends", read),
        ("reads", send),
        ("sends", {**send, "acks": "no number"}),
        ("effects", read),
    ]
    assert problems(spark, rows, "sends", "reads") == [
        None,
        None,
        "no producer",
        "no consumer",
        "no row of JSON",
        "no such table",
    ]


@pytest.mark.parametrize("tables", [("operations",), ("sends", "reads")])
def test_no_batch_has_code_of_its_own(tables: tuple[str, ...], spark: SparkSession) -> None:
    # What Spark puts the batch's time in for is another number, so other code, in each batch.
    frame = spark.createDataFrame([], "table string, value string")
    spark.conf.set("spark.sql.debug.maxToStringFields", "1000")
    try:
        plan = rows_of(frame, *tables)._jdf.queryExecution().analyzed().toString().lower()
    finally:
        spark.conf.unset("spark.sql.debug.maxToStringFields")
    assert "currenttimemillis" in plan
    for of_the_batch in ("current_timestamp", "now(", "localtimestamp", "current_date"):
        assert of_the_batch not in plan
