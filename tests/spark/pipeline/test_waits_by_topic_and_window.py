"""Waits by topic and by window of time, approximate percentiles, and refused arguments."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline import waits
from purgatory.trace.percentiles import PERCENTILES
from purgatory.trace.rounded_waits import (
    MAX_RELATIVE_ERROR,
    round_array,
    round_us,
    rounded_sql,
)
from tests.spark.pipeline.audit_rows import Engine
from tests.spark.pipeline.operation_rows import waits_of

pytestmark = pytest.mark.spark

Row = dict[str, Any]
SCHEMA = pa.schema(
    [
        ("run_id", pa.string()),
        ("purgatory", pa.string()),
        ("kind", pa.string()),
        ("outcome", pa.string()),
        ("watch_keys", pa.list_(pa.string())),
        ("start_us", pa.int64()),
        ("wait_us", pa.int64()),
    ]
)


def _operation(start_us: int, wait_us: int, keys: list[str] | None, outcome: str) -> Row:
    return {
        "run_id": "run",
        "purgatory": "Fetch",
        "kind": "consumer",
        "outcome": outcome,
        "watch_keys": keys,
        "start_us": start_us,
        "wait_us": wait_us,
    }


def _table(engine: Engine, operations: list[Row], **how: Any) -> list[Row]:
    rows: list[Row] = waits_of(
        engine, pa.Table.from_pylist(operations, schema=SCHEMA), **how
    ).to_pylist()
    return rows


def test_operation_on_two_topics_counts_under_each(
    engine: Engine,
) -> None:
    rows = _table(
        engine,
        [
            _operation(0, 10, ["orders-0", "orders-12"], "completed"),
            _operation(0, 20, ["orders-1", "change-log-3"], "completed"),
            _operation(0, 30, ["change-log-3"], "expired"),
            _operation(0, 40, ["group-7-members"], "completed"),
            _operation(0, 50, None, "completed"),
        ],
        by_topic=True,
    )
    overall = {
        row["topic"]: (row["operations"], row["wait_max_us"], row["expiry_ratio"])
        for row in rows
        if row["kind"] == row["outcome"] == "all"
    }
    assert overall == {
        "*": (5, 50, 0.2),
        "orders": (2, 20, 0.0),
        "change-log": (2, 30, 0.5),
        "group-7-members": (1, 40, 0.0),
        None: (1, 50, 0.0),
    }
    shares = {row["outcome"]: row["share"] for row in rows if row["topic"] == "change-log"}
    assert shares == {"completed": 0.5, "expired": 0.5, "all": 1.0}


def test_traces_without_keys_have_one_unknown_topic(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        pa.Table.from_pylist([_operation(0, 10, None, "completed")], schema=SCHEMA)
    ).drop("watch_keys")
    topics = {row.topic for row in waits(frame, by_topic=True).collect()}
    assert topics == {"*", None}


def test_operation_counts_in_the_window_of_its_start(engine: Engine) -> None:
    rows = _table(
        engine,
        [
            _operation(0, 500, None, "completed"),
            _operation(99, 700, None, "expired"),
            _operation(100, 1, None, "completed"),
            _operation(350, 9, None, "pending"),
        ],
        window_us=100,
    )
    found = {
        (row["window_start_us"], row["window_end_us"], row["outcome"]): (
            row["operations"],
            row["share"],
            row["expiry_ratio"],
            row["wait_max_us"],
        )
        for row in rows
        if row["kind"] == "all"
    }
    assert found == {
        (0, 100, "completed"): (1, 0.5, None, 500),
        (0, 100, "expired"): (1, 0.5, None, 700),
        (0, 100, "all"): (2, 1.0, 0.5, 700),
        (100, 200, "completed"): (1, 1.0, None, 1),
        (100, 200, "all"): (1, 1.0, 0.0, 1),
        # The wait of a pending operation is unknown.
        (300, 400, "pending"): (1, 1.0, None, 9),
        (300, 400, "all"): (1, 1.0, None, None),
    }


def test_approximate_percentiles_keep_the_stated_error(engine: Engine) -> None:
    chance = random.Random(7)
    outcomes = {
        "completed": lambda: int(chance.lognormvariate(10, 3)),
        "expired": lambda: 2 * 10**9,
    }
    outcomes["failed"] = lambda: chance.randrange(9_990, 10_030)
    operations = [
        _operation(0, outcomes[name](), None, name)
        for name in chance.choices(list(outcomes), [0.9, 0.02, 0.08], k=4_000)
    ]
    groups = defaultdict(list)
    for operation in operations:
        groups[operation["outcome"]].append(operation["wait_us"])
        groups["all"].append(operation["wait_us"])
    exact_rows = {row["outcome"]: row for row in _table(engine, operations)}
    approximate = _table(engine, operations, percentiles="approximate")
    differing = 0
    for row in approximate:
        found = groups[row["outcome"]]
        for name, share in PERCENTILES.items():
            exact = float(np.percentile(found, 100 * share))
            assert exact_rows[row["outcome"]][name] == pytest.approx(exact, rel=1e-12)
            assert exact * (1 - MAX_RELATIVE_ERROR) - 1e-6 <= row[name] <= exact + 1e-6
            differing += row[name] != exact
        for name in ("operations", "share", "expiry_ratio", "wait_max_us"):
            assert row[name] == exact_rows[row["outcome"]][name]
        assert row["wait_mean_us"] == pytest.approx(sum(found) / len(found), rel=1e-12)
    assert differing > 5, "rounding shows, or nothing was tested"


def test_waits_are_rounded_alike_alone_in_arrays_and_in_columns(spark: SparkSession) -> None:
    values = [0, 9_999, 10_000, 10_009, 10_010, 99_999, 100_099, 2**31 + 5]
    values += [10**18 - 1, 10**18, 2**63 - 1]
    frame = spark.createDataFrame(pa.table({"wait_us": pa.array(values, pa.int64())}))
    rounded = frame.selectExpr(f"{rounded_sql('wait_us')} as value").toArrow()
    found = rounded["value"].to_pylist()
    assert found == [round_us(value) for value in values]
    assert found == round_array(np.array(values)).tolist()


def test_a_window_of_no_length_and_an_unknown_word_are_refused(spark: SparkSession) -> None:
    operations = spark.range(1)
    with pytest.raises(ValueError, match=r"window_us must be a positive number .* not 0"):
        waits(operations, window_us=0)
    with pytest.raises(ValueError, match="'exact' or 'approximate', not 'nearly'"):
        waits(operations, percentiles="nearly")  # type: ignore[arg-type]
