"""Traces and results as tables of Spark's catalog, and results in partitions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from purgatory.cli.main import main
from purgatory.pipeline.engines.spark.session import spark_session
from purgatory.pipeline.engines.spark.task_output import CatalogOutput
from purgatory.pipeline.errors import OutputError, TraceError
from purgatory.pipeline.ingest.catalog_traces import catalog_survey
from purgatory.pipeline.ingest.spark_reader import quarantine_of, read_table, read_traces
from purgatory.pipeline.ingest.stores import TableName
from purgatory.pipeline.ingest.trace_set import survey
from purgatory.pipeline.jobs.audit.client_settings import configuration_of
from tests.pipeline.one_session import run_all
from tests.pipeline.test_quarantine import READ

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

WriteTrace = Callable[..., Path]
PRODUCER = {"group": "orders", "acks": -1, "idempotence": True, "max_in_flight": 5}


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, write_trace: WriteTrace, hand_operations: list[Any]
) -> Path:
    """Two runs, of which one was interrupted, and a third that another program wrote."""
    folder = tmp_path_factory.mktemp("runs")
    write_trace(folder / "a", hand_operations, run_id="a", producers=[PRODUCER], parts=2)
    write_trace(folder / "b", hand_operations[:3], run_id="b", complete=False)
    (folder / "c").mkdir()
    twice = [{**READ, "poll": poll, "time_us": poll} for poll in (1, 2)]
    lines = "\n".join(map(json.dumps, twice))
    (folder / "c" / "reads.jsonl").write_text(lines, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def lake(spark: SparkSession, runs: Path) -> Iterator[str]:
    """A database with the tables of these runs."""
    spark.sql("CREATE DATABASE lake")
    found = read_traces(spark, runs)
    for table in ("operations", "sends", "reads", "runs"):
        getattr(found, table).write.saveAsTable(f"lake.{table}")
    yield "spark_catalog.lake"
    spark.sql("DROP DATABASE lake CASCADE")


@pytest.fixture
def results(spark: SparkSession) -> Iterator[str]:
    """An empty database."""
    spark.sql("CREATE DATABASE results")
    yield "results"
    spark.sql("DROP DATABASE results CASCADE")


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)


def test_tables_tell_what_folders_tell(
    spark: SparkSession,
    runs: Path,
    lake: str,
    results: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    statuses = run_all(
        spark,
        "local[2]",
        [
            ["waits", str(runs), "--out", str(tmp_path / "files")],
            ["waits", "--from-table", lake, "--to-table", results],
            ["waits", "--from-table", lake, "--to-table", results],
            ["waits", "--from-table", lake, "--to-table", results, "--overwrite"],
            [
                *("waits", str(runs), "--out", str(tmp_path / "parts"), "--partition-by", "run_id"),
                *("--report", str(tmp_path / "page.html")),
            ],
        ],
    )
    assert statuses == [0, 0, 2, 0, 0]
    told = capfd.readouterr()
    [line] = told.err.splitlines()
    assert "results: has a table waits already; allow --overwrite" in line
    assert "Tables: results" in told.out
    for table in ("waits", "slowest"):
        rows = _sorted(pq.read_table(tmp_path / "files" / table).to_pylist())
        assert rows
        assert _sorted(spark.table(f"results.{table}").toArrow().to_pylist()) == rows
        parted = spark.read.parquet(f"file:{tmp_path / 'parts' / table}")
        names = pq.read_table(tmp_path / "files" / table).column_names
        assert _sorted(parted.select(*names).toArrow().to_pylist()) == rows
        files = [one for one in (tmp_path / "parts" / table).iterdir() if one.is_dir()]
        assert {one.name for one in files} == {"run_id=a", "run_id=b"}
        assert all(len(list(one.glob("*.parquet"))) == 1 for one in files)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    linked = set(re.findall(r'href="(parts/[^"]*)"', page))
    assert linked == {"parts/waits/", "parts/slowest/", "parts/expiry/"}
    assert all((tmp_path / one).is_dir() for one in linked)


def test_an_audit_of_tables_knows_the_settings(
    spark: SparkSession, runs: Path, lake: str, results: str
) -> None:
    files = survey([runs]).traces
    tables = catalog_survey(spark, [TableName(lake)], ("sends", "reads")).traces
    assert [trace.run_id for trace in tables] == ["a", "b", "c"]
    assert [trace.complete for trace in tables] == [True, False, True]
    assert repr(configuration_of(tables, {})) == repr(configuration_of(files, {}))
    command = ["audit", "--from-table", lake, "--to-table", results, "--partition-by", "run_id"]
    assert run_all(spark, "local[2]", [[*command, "--expect", "once"]]) == [1]
    violated = spark.table("results.audit").where("verdict = 'violation'").collect()
    assert {(row["run_id"], row["count"]) for row in violated} == {("c", 1)}
    assert spark.table("results.witnesses").where("run_id = 'c'").count() > 0


def test_without_a_table_of_runs_each_id_is_a_run(spark: SparkSession, lake: str) -> None:
    [*traces] = catalog_survey(spark, [TableName(f"{lake}.operations")], ("operations",)).traces
    assert [(trace.run_id, trace.complete, trace.producers) for trace in traces] == [
        ("a", True, None),
        ("b", True, None),
    ]
    assert read_table(spark, traces, "reads").count() == 0


def test_bad_rows_of_a_table_are_set_aside(spark: SparkSession, lake: str) -> None:
    good = spark.table(f"{lake}.operations")
    late = good.where("run_id = 'b'").limit(1).withColumn("wait_us", f.lit(-5).cast("bigint"))
    nobody = good.limit(1).withColumn("run_id", f.lit(None).cast("string"))
    good.union(late).union(nobody).createOrReplaceTempView("mine")
    found = catalog_survey(spark, [TableName("operations=mine")], ("operations",))
    assert read_table(spark, found.traces, "operations").count() == good.count()
    bad = quarantine_of(spark, found, ("operations",)).collect()
    assert {(row["run_id"], row["file"], row["line"], row["reason"]) for row in bad} == {
        ("b", "mine", None, "impossible time"),
        (None, "mine", None, "missing column"),
    }
    assert all(json.loads(row["content"])["operation"] >= 0 for row in bad)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from-table", "lake.nowhere"], "lake.nowhere: is no table that a trace has"),
        (["--from-table", "nowhere.operations"], "there is no table nowhere.operations"),
        (["--from-table", "nothing=lake.sends"], "a trace has no table 'nothing'"),
        (["--from-table", "no.such.catalog.operations"], "--from-table no.such.catalog.operations"),
        (["--from-table", "lake.sends"], "has no table 'operations'"),
        (["--from-table", "operations=lake.runs"], r"lake.runs: the column '\w+' \(\w+\) is miss"),
        (["--from-table", "lake", "trace"], "give TRACE... or --from-table, one of both"),
        ([], "give TRACE... or --from-table, one of both"),
        (["--from-table", "lake", "--to-table", "nowhere"], "nowhere: there is no such database"),
        (["--from-table", "lake", "--to-table", "a", "--out", "b"], "give --out or --to-table"),
        (["--from-table", "lake", "--engine", "duckdb"], "lake: DuckDB reads folders and s3://"),
        ([".", "--partition-by", "run_id", "--engine", "duckdb"], "DuckDB writes one file"),
    ],
)
def test_tables_that_can_not_be_are_told_in_one_line(
    spark: SparkSession,
    lake: str,
    words: list[str],
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run_all(spark, "local[2]", [["waits", *words]]) == [2]
    [line] = capfd.readouterr().err.splitlines()
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(line)


def test_a_table_of_something_else_is_not_replaced(spark: SparkSession, results: str) -> None:
    spark.range(3).write.saveAsTable("results.waits")
    place = CatalogOutput(spark, "results", True, None)
    place.check(["waits"])
    with pytest.raises(OutputError, match=r"results\.waits has other columns than the result"):
        (place / "waits").save(spark.range(1).withColumnRenamed("id", "run_id"))
    assert spark.table("results.waits").count() == 3


def test_tables_of_runs_that_can_not_be(spark: SparkSession, lake: str) -> None:
    for rows, message in (
        ([("a", True), ("a", True)], "two rows of the run 'a'"),
        ([(None, True)], "run_id must be a text"),
    ):
        schema = "run_id string, complete boolean"
        spark.createDataFrame(rows, schema).createOrReplaceTempView("heads")
        names = [TableName(f"{lake}.operations"), TableName("runs=heads")]
        with pytest.raises(TraceError, match=message):
            catalog_survey(spark, names, ("operations",))
    spark.table(f"{lake}.operations").limit(0).createOrReplaceTempView("none")
    with pytest.raises(TraceError, match="none: no run is in there"):
        catalog_survey(spark, [TableName("operations=none")], ())


def test_a_connect_server_reads_and_writes_its_tables(
    connect: str, runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with spark_session(connect) as session:
        read_traces(session, runs / "a").operations.write.saveAsTable("operations")
        session.sql("CREATE DATABASE told")
    command = ["waits", "--from-table", "operations", "--to-table", "told", "--master", connect]
    assert main(command) == 0
    assert "Waits in a" in capfd.readouterr().out
    with spark_session(connect) as session:
        rows = session.table("told.waits").where("kind = 'all' AND outcome = 'all'").collect()
        assert sum(row["operations"] for row in rows if row["topic"] == "*") == 8
        session.sql("DROP DATABASE told CASCADE")
        session.sql("DROP TABLE operations")
