"""Spark's plans for the statements of the jobs: without operators that do not scale."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.spark.sql_engine import SparkEngine, sql_settings
from purgatory.pipeline.jobs.chain import Statement
from purgatory.pipeline.jobs.registry import ANALYZE, OCCUPANCY, WAITS, SmallTable
from purgatory.pipeline.jobs.run_spans import FAULTS
from purgatory.trace.trace_schema import TABLES

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_WINDOW = re.compile(r"windowspecdefinition\((.*?)(?:, specifiedwindowframe|\))")

FEW_ROWS: Mapping[str, str] = {
    "producer_settings": "a row per run and group",
    "consumer_settings": "a row per run and group",
    "audit": "a row per run and anomaly",
    "disorders": "a row for each side of a gap",
    "latencies": "a row per share of each group",
    "ranked_times": "a row per span of an attempt",
    "wanted_steps": "a row per share of each row of the result",
    "waits": "a row per share of each row of the result",
    "waits_over_time": "a row per share of each row of the result",
}
"""The statements that multiply rows on purpose, with the bound that keeps these few."""


class PlanningEngine(SparkEngine):
    """An engine that keeps the physical plan of each table, and computes none."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        super().__init__(session, f"file:{folder}")
        self._empty = folder
        self.plans: dict[str, str] = {}

    def run(self, statements: Iterable[Statement]) -> None:
        chain = list(statements)
        self._define_macros(chain)
        for one in chain:
            table = self.session.sql(one.query)
            if one.kept:
                self.plans[one.name] = table._jdf.queryExecution().executedPlan().toString()
                (self._empty / one.name).mkdir()
                table = self.session.read.schema(table.schema).parquet(f"{self._folder}/{one.name}")
            table.createOrReplaceTempView(one.name)


@pytest.fixture(scope="module")
def plans(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, str]]:
    """The plans of all tables of all jobs, on tables in files, with several tasks to a shuffle.

    Only tables that a hint or their size at run time makes small are broadcast.
    """
    settings = {
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
    }
    before = {name: spark.conf.get(name) for name in settings}
    folder = tmp_path_factory.mktemp("plans")
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        with sql_settings(spark):
            engine = PlanningEngine(spark, folder)
            for name, kinds in TABLES.items():
                schema = ", ".join(f"`{column}` {kind}" for column, kind in kinds.items())
                (folder / f"in-{name}").mkdir()
                frame = spark.read.schema(schema).parquet(f"file:{folder}/in-{name}")
                frame.createOrReplaceTempView(name)
            small = {**_small_tables(), "faults": SmallTable(FAULTS, [])}
            for name, table in small.items():
                row = tuple(None for _ in table.columns)
                engine.make_table(name, table.columns, [row, *table.rows])
            for job in (WAITS, OCCUPANCY, ANALYZE):
                engine.run(
                    one
                    for one in job.statements({**job.all_options({}), "page": True})
                    if one.name not in engine.plans
                )
        yield engine.plans
    finally:
        for name, old in before.items():
            if old is not None:
                spark.conf.set(name, old)


def _small_tables() -> Mapping[str, SmallTable]:
    from purgatory.pipeline.ingest.trace_set import RowCheck

    return ANALYZE.small_tables([], RowCheck({}, {}, (), {}), {})


def test_only_few_rows_are_multiplied(plans: Mapping[str, str]) -> None:
    assert len(plans) > 30
    multiplying = {
        name
        for name, plan in plans.items()
        if "CartesianProduct" in plan or "BroadcastNestedLoopJoin" in plan
    }
    assert multiplying <= FEW_ROWS.keys()


def test_no_statement_needs_python_or_one_task_for_all_rows(plans: Mapping[str, str]) -> None:
    for name, plan in plans.items():
        assert "PythonUDF" not in plan and "MapInArrow" not in plan, name
        # Rows that the result is made of are numbered in one task: some for each of its rows.
        assert name == "wanted_steps" or not re.search(
            r"Window \[.*\n[^\n]*Sort[^\n]*\n[^\n]*SinglePartition", plan
        ), name


def test_windows_span_one_run_at_most(plans: Mapping[str, str]) -> None:
    windows = {
        re.sub(r"#\d+L?", "", window) for plan in plans.values() for window in _WINDOW.findall(plan)
    }
    assert len(windows) >= 15
    of_parts = ("_w", "place, counted_us")
    assert [one for one in windows if "run_id" not in one and not one.startswith(of_parts)] == []


def test_tasks_pick_witnesses_and_slowest_before_a_shuffle(
    plans: Mapping[str, str],
) -> None:
    for name in ("witness_cases", "slowest"):
        assert re.search(r"WindowGroupLimit \[run_id.*Partial", plans[name]), name
