"""Operations from records: which are valid, and the reasons for quarantine."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from purgatory.stream.windowed_waits import operations_of
from tests.spark.pipeline.stream.sample_rows import SECOND_US, STARTED_US, operation

DAY_US = 24 * 3600 * SECOND_US


@pytest.fixture(name="session")
def fixture_session(spark: SparkSession) -> SparkSession:
    """A session whose settings no other test sees."""
    return spark.newSession()


def parsed(session: SparkSession, texts: Sequence[str | None]) -> DataFrame:
    """The rows of operations of some records, in their order."""
    schema = "value string, topic string, `partition` int"
    records = session.createDataFrame([(text, "live", 0) for text in texts], schema)
    return operations_of(records.coalesce(1))


def problems(session: SparkSession, rows: Sequence[dict[str, Any]]) -> list[str | None]:
    """The problem of each of some rows, in their order."""
    texts = [json.dumps(row) for row in rows]
    return [row["problem"] for row in parsed(session, texts).collect()]


def test_row_from_more_than_a_day_ahead_is_bad(session: SparkSession) -> None:
    now_us = time.time_ns() // 1_000 - STARTED_US
    ahead = [now_us + DAY_US * tenths // 10 for tenths in (9, 11)]
    assert problems(session, [operation(at_us) for at_us in ahead]) == [None, "from the future"]


def test_time_beyond_64_bits_or_before_1970_is_a_bad_row(session: SparkSession) -> None:
    rows = [operation(5_000, started_us=2**63 - 100), operation(5_000, started_us=-(10**17))]
    assert problems(session, rows) == ["impossible time"] * 2


def test_bad_record_gives_its_text_and_a_good_one_its_columns(session: SparkSession) -> None:
    good = operation(50_000, "expired", wait_us=12_345)
    found = [row.asDict() for row in parsed(session, [json.dumps(good), "{", None]).collect()]
    assert found[0] == {
        "topic": "live",
        "partition": 0,
        "problem": None,
        "example": None,
        "run_id": "run",
        "broker": 1,
        "purgatory": "Produce",
        "kind": "producer",
        "outcome": "expired",
        "wait_us": 12_345,
        "event_us": STARTED_US + 50_000,
    }
    assert [row["problem"] for row in found[1:]] == ["no row of JSON"] * 2
    assert [row["example"] for row in found[1:]] == ["{", None]


def test_batches_share_their_generated_code(session: SparkSession) -> None:
    # Spark replaces these functions by a constant, so by other code, in each batch.
    session.conf.set("spark.sql.debug.maxToStringFields", "1000")
    plan = parsed(session, [])._jdf.queryExecution().analyzed().toString().lower()
    assert "currenttimemillis" in plan
    for of_the_batch in ("current_timestamp", "now(", "localtimestamp", "current_date"):
        assert of_the_batch not in plan
