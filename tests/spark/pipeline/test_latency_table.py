"""The table `latencies` by both engines, against plain Python and against Spark's `percentile`."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from purgatory.pipeline.jobs.result_orders import LATENCY_SPANS
from purgatory.trace.percentiles import DECIMALS
from purgatory.trace.rounded_waits import round_us
from tests.spark.pipeline.analysis_rows import latencies_of
from tests.spark.pipeline.audit_rows import Engine
from tests.spark.pipeline.operation_rows import assert_same

pytestmark = pytest.mark.spark

Row = dict[str, Any]
Times = dict[tuple[str, str, str], list[int]]
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_TIMES = ("created_us", "send_us", "arrived_us", "served_us", "settled_us", "answer_us")


def _sends(seed: int) -> list[Row]:
    """Sends of many groups: few and many, quick and slow, with unknown times."""
    chance = random.Random(seed)
    rows = []
    for group in range(40):
        number = chance.choice([1, 2, 3, 7, 60, 400])
        longest_us = chance.choice([4, 1_000, 10**6, 10**9])
        for _ in range(number):
            times = sorted(chance.randrange(longest_us) for _ in _TIMES)
            row: Row = dict(zip(_TIMES, times, strict=True))
            for name in ("created_us", "answer_us"):
                row[name] = None if chance.random() < 0.2 else row[name]
            if chance.random() < 0.2:
                row |= {"arrived_us": None, "served_us": None, "settled_us": None}
            row |= {"run_id": f"run-{group % 3}", "group": f"group {group}", "attempt": 1}
            row |= {"producer": chance.randrange(2), "sequence": chance.randrange(number)}
            row["outcome"] = chance.choice(["ok", "ok", "fail"])
            row["error"] = chance.choice([None, "DISCONNECTED", "TIMED_OUT"])
            rows.append(row)
    return rows


def _table(sends: list[Row]) -> pa.Table:
    texts = {"run_id", "group", "outcome", "error"}
    kinds = [(name, pa.string() if name in texts else pa.int64()) for name in sends[0]]
    return pa.Table.from_pylist(sends, schema=pa.schema(kinds))


def _times(sends: list[Row]) -> Times:
    """All times of each run, group and span, rounded; the longest last."""
    spans: Times = defaultdict(list)
    records: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in sends:
        of = (row["run_id"], row["group"])
        records[*of, row["producer"], row["sequence"]].append(row)
        if row["answer_us"] is None:
            continue
        attempt_us = row["answer_us"] - row["send_us"]
        spans[*of, "attempt"].append(attempt_us)
        if row["error"] == "DISCONNECTED":
            spans[*of, "broken"].append(attempt_us)
        if row["settled_us"] is not None:
            at_broker_us = row["settled_us"] - row["arrived_us"]
            spans[*of, "network"].append(attempt_us - at_broker_us)
            spans[*of, "queue"].append(row["served_us"] - row["arrived_us"])
            spans[*of, "wait"].append(row["settled_us"] - row["served_us"])
    for (run_id, group, *_), attempts in records.items():
        stored = [row["answer_us"] for row in attempts if row["outcome"] == "ok"]
        known = [answer_us for answer_us in stored if answer_us is not None]
        if known:
            began_us = (
                row["send_us"] if row["created_us"] is None else row["created_us"]
                for row in attempts
            )
            spans[run_id, group, "record"].append(min(known) - min(began_us))
    return {key: sorted(times) for key, times in spans.items()}


def test_each_span_has_its_times(engine: Engine) -> None:
    sends = _sends(1)
    expected = _times(sends)
    found = latencies_of(engine, _table(sends)).to_pylist()
    assert len(expected) > 150
    assert {(row["run_id"], row["group"], row["span"]) for row in found} == expected.keys()
    for row in found:
        times = expected[row["run_id"], row["group"], row["span"]]
        assert row["count"] == len(times)
        assert row["latency_mean_us"] == sum(times) / len(times)
        assert row["latency_max_us"] == times[-1]
        for name, share in SHARES.items():
            low, place = divmod(share * (len(times) - 1), 1)
            before, after = (
                round_us(times[min(rank, len(times) - 1)]) for rank in (int(low), int(low) + 1)
            )
            exact = before + (after - before) * place
            assert row[f"latency_{name}_us"] == round(exact, DECIMALS), row


def test_rows_are_in_the_order_of_display(engine: Engine) -> None:
    found = latencies_of(engine, _table(_sends(2))).to_pylist()
    spans = list(LATENCY_SPANS)
    keys = [(row["run_id"], row["group"], spans.index(row["span"])) for row in found]
    assert keys == sorted(keys)


def test_both_engines_have_the_same_latencies(spark: SparkSession) -> None:
    sends = _table(_sends(3))
    with duckdb.connect() as connection:
        assert_same(latencies_of(connection, sends), latencies_of(spark, sends))


def test_percentiles_are_those_of_spark(spark: SparkSession) -> None:
    sends = _sends(4)
    times = [(*key, round_us(time_us)) for key, of in _times(sends).items() for time_us in of]
    rows = spark.createDataFrame(times, "run_id string, group string, span string, value bigint")
    shares = f.array(*map(f.lit, SHARES.values()))
    expected = {
        tuple(row)[:3]: [round(value, DECIMALS) for value in row["at"]]
        for row in rows.groupBy("run_id", "group", "span")
        .agg(f.percentile("value", shares).alias("at"))
        .collect()
    }
    with duckdb.connect() as connection:  # which has the same as Spark, by the test above
        found = latencies_of(connection, _table(sends)).to_pylist()
    assert len(found) == len(expected)
    for row in found:
        told = [row[f"latency_{name}_us"] for name in SHARES]
        assert told == expected[row["run_id"], row["group"], row["span"]]


def test_latency_table_without_sends_has_no_rows(engine: Engine) -> None:
    assert latencies_of(engine, _table(_sends(5)).slice(0, 0)).num_rows == 0
