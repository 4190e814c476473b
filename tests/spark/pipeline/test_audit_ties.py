"""Rows that tie, in times and in all columns that are not null: the order of rows decides nothing.

Nor does the engine: of random runs, and of a run with each injection, under one configuration or
another. Under all of them DuckDB is tested elsewhere by day, and Spark by night.
"""

from __future__ import annotations

import random
from itertools import cycle
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from tests.spark.pipeline.audit_injections import INJECTIONS, injected
from tests.spark.pipeline.audit_rows import SmallTrace, result_of
from tests.spark.pipeline.test_audit_injections import CONFIGURATIONS, injected_case
from tests.spark.pipeline.test_audit_oracle import BY_HAND, random_trace

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def _tied(anomaly: str) -> SmallTrace:
    """A run with an anomaly, all at once, in which rows come again with other cells null."""
    trace, _ = injected(anomaly, 2, seed=5)
    trace.sends = [send._replace(send_us=7, answer_us=9) for send in trace.sends]
    trace.reads = [read._replace(time_us=11) for read in trace.reads]
    trace.sends += [send._replace(answer_us=None) for send in trace.sends[::3]]
    trace.sends += [send._replace(error="X") for send in trace.sends[::4]]
    trace.sends += [send._replace(partition=send.partition + 5) for send in trace.sends[::5]]
    trace.reads += [read._replace(partition=read.partition + 5) for read in trace.reads[::3]]
    trace.reads += [read._replace(isolation="read_committed") for read in trace.reads[::4]]
    trace.effects += [effect._replace(transaction=1) for effect in trace.effects[::3]]
    trace.commits += [commit._replace(transaction=None, held=True) for commit in trace.commits[::2]]
    ends = [end._replace(decided_us=20, ended_us=30) for end in trace.transactions]
    trace.transactions += ends + [end._replace(ended_us=None) for end in ends]
    return trace


def test_no_result_depends_on_the_order_of_rows_or_on_the_engine(spark: SparkSession) -> None:
    """Each cell is the same, also of other traces: of a hundred, in one job."""
    tied = {anomaly: _tied(anomaly) for anomaly in INJECTIONS}
    traces = tied | {f"run-{seed}": random_trace(seed) for seed in range(1_000, 1_030)} | BY_HAND
    for number, (anomaly, configuration) in enumerate(
        zip(INJECTIONS, cycle(CONFIGURATIONS), strict=False)
    ):
        case = injected_case(anomaly, 2, configuration, number)
        traces[f"{anomaly}, {configuration}"] = case.trace
    limits: dict[str, Any] = {"witnesses": 3, "split": 3, "split_us": 20}
    chance = random.Random(3)
    with duckdb.connect() as connection:
        audit, witnesses = result_of(connection, traces, **limits)
        assert len(witnesses) > 1_000
        of_tied = [[row for row in rows if row["run_id"] in tied] for rows in (audit, witnesses)]
        for _ in range(3):
            for trace in tied.values():
                for rows in (trace.sends, trace.reads, trace.effects, trace.commits):
                    chance.shuffle(rows)
                chance.shuffle(trace.transactions)
            assert list(result_of(connection, tied, **limits)) == of_tied
    of_spark = result_of(spark, traces, **limits)
    assert audit == of_spark[0]
    assert len(witnesses) == len(of_spark[1])
    for one, other in zip(witnesses, of_spark[1], strict=True):
        assert one == other
