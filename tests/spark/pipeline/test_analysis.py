"""Whole analyses: their results, also of broken traces and of lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.engine import RunOptions
from purgatory.pipeline.engines.results import JobResults
from purgatory.pipeline.engines.run import run_job, run_opened
from purgatory.pipeline.engines.spark import traces as spark_traces
from purgatory.pipeline.engines.spark.session import spark_errors
from purgatory.pipeline.engines.spark.traces import opened_in
from purgatory.pipeline.errors import PipelineError, SessionError, TraceError
from purgatory.pipeline.ingest.trace_set import read_trace_set
from purgatory.pipeline.jobs.registry import ANALYZE, OCCUPANCY, WAITS, Job
from tests.spark.pipeline.analysis_rows import assert_same_results
from tests.spark.pipeline.audit_rows import Engine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

WriteTrace = Callable[..., Path]
Row = dict[str, Any]
SEND = {
    "group": "orders",
    "producer": 0,
    "attempt": 1,
    "key": 1,
    "acks": -1,
    "outcome": "ok",
    "topic": "events",
    "partition": 0,
    "size_bytes": 10,
}
READ = {"group": "billing", "consumer": 0, "topic": "events", "partition": 0, "applied": True}


class Analyzed(NamedTuple):
    """An analysis, the folder of its traces, and that of its results."""

    traces: Path
    out: Path
    analysis: JobResults


def _analyze(engine: Engine | None, root: Path, out: Path, *, strict: bool = False) -> JobResults:
    if not isinstance(engine, SparkSession):
        return run_job(
            "analyze", [root], out, engine="duckdb", run_options=RunOptions(strict=strict)
        )
    out.mkdir()
    found = read_trace_set([root], strict=strict)
    with opened_in(engine, found, out, strict=strict) as opened:
        return run_opened(ANALYZE, opened)


def _read(folder: Path) -> list[Row]:
    rows: list[Row] = pq.read_table(folder).to_pylist()
    return rows


def _write_lines(folder: Path, table: str, rows: list[Row], more: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows) + more
    (folder / f"{table}.jsonl").write_text(text, encoding="utf-8")


def _sends(number: int) -> list[Row]:
    return [
        {**SEND, "sequence": n, "value_id": n, "send_us": n, "answer_us": n + 5, "offset": n}
        for n in range(number)
    ]


def _reads(number: int) -> list[Row]:
    return [
        {**READ, "poll": n + 1, "offset": n, "value_id": n, "time_us": n + 9} for n in range(number)
    ]


def _write_foreign_traces(traces: Path) -> None:
    """Lines as other programs write them: a run whose last read was torn, and one with effects."""
    _write_lines(traces / "torn", "sends", _sends(4))
    _write_lines(traces / "torn", "reads", _reads(4)[:3], more='{"group": "billing", "cons')
    _write_lines(traces / "applied", "sends", _sends(2))
    _write_lines(traces / "applied", "reads", _reads(2))
    # Keys that are texts: the results show them, and have a table of their numbers.
    effect = {**READ, "offset": 0, "key": "k-1", "version": 1, "time_us": 20}
    again, other = {"version": 2, "time_us": 21}, {"offset": 1, "key": "k-2"}
    effects = [effect, {**effect, **again}, {**effect, **other}]
    _write_lines(traces / "applied", "effects", effects)


@pytest.fixture(scope="module")
def traces(
    write_trace: WriteTrace,
    hand_operations: list[Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A whole run, an interrupted, an empty and a bad one, and two that are lines of JSON."""
    traces = tmp_path_factory.mktemp("analyzed") / "traces"
    write_trace(traces / "1", hand_operations, run_id="whole", duration_ms=2)
    write_trace(traces / "2", hand_operations, run_id="cut", complete=False, duration_ms=0)
    write_trace(traces / "3", [], run_id="empty", duration_ms=5)
    backwards = hand_operations[1]._replace(start_us=900, end_us=899)
    bad = write_trace(traces / "4", [*hand_operations, backwards], run_id="bad", parts=2)
    part = bad / "operations" / "part-00001.parquet"
    table = pq.read_table(part)
    strange = pa.array(["stranger"] + ["bad"] * (len(table) - 1))
    pq.write_table(table.set_column(0, "run_id", strange), part)
    _write_foreign_traces(traces)
    return traces


@pytest.fixture(scope="module")
def analyses(spark: SparkSession, traces: Path) -> Mapping[str, Analyzed]:
    """The analysis of these by each engine."""
    outs = {name: traces.parent / name for name in ("spark", "duckdb")}
    return {
        "spark": Analyzed(traces, outs["spark"], _analyze(spark, traces, outs["spark"])),
        "duckdb": Analyzed(traces, outs["duckdb"], _analyze(None, traces, outs["duckdb"])),
    }


@pytest.fixture(params=["spark", "duckdb"], ids="of {}".format)
def analyzed(request: pytest.FixtureRequest, analyses: Mapping[str, Analyzed]) -> Analyzed:
    """One of both."""
    return analyses[request.param]


def test_analysis_has_a_whole_an_interrupted_and_an_empty_run(analyzed: Analyzed) -> None:
    traces, out, analysis = analyzed
    runs = {row["run_id"]: row for row in _read(out / "runs")}
    assert list(runs) == ["applied", "bad", "cut", "empty", "torn", "whole"]
    assert [row["run_id"] for row in analysis.runs] == list(runs)
    assert runs["whole"] == {
        "run_id": "whole",
        "scenario": "by-hand",
        "seed": 1,
        "complete": True,
        "duration_us": 2000,
        "bucket_width_us": 5,
        "operations": 8,
        "sends": 0,
        "reads": 0,
        "faults": [],
        "folder": str(traces / "1"),
    }
    # The head of an interrupted run may not know how long it was: the last operation's end tells.
    assert (runs["cut"]["complete"], runs["cut"]["duration_us"]) == (False, 1000)
    assert (runs["empty"]["operations"], runs["empty"]["duration_us"]) == (0, 5000)
    waits = _read(out / "waits")
    assert waits == list(analysis.rows["waits"])
    assert {row["run_id"] for row in waits} == {"whole", "cut", "bad"}
    occupancy = _read(out / "occupancy")
    assert len([row for row in occupancy if row["run_id"] == "whole"]) == 400 * (2 + 1 + 1 + 1)
    keys = [
        (
            row["run_id"],
            row["purgatory"],
            -1 if row["broker"] is None else row["broker"],
            row["bucket_start_us"],
        )
        for row in occupancy
    ]
    assert keys == sorted(keys)
    page = Path(str(analysis.report)).read_text(encoding="utf-8")
    incomplete = [row for row in analysis.runs if not row["complete"]]
    assert page.count("The trace is incomplete:") == len(incomplete) > 0
    assert "This run has no operations." in page


def test_bad_rows_are_quarantined_and_counted(analyzed: Analyzed) -> None:
    traces, out, analysis = analyzed
    assert [
        (row["table"], row["reason"], row["rows"], row["files"]) for row in analysis.quarantine
    ] == [
        ("operations", "impossible time", 1, 0),
        ("operations", "row of another run", 1, 0),
        ("reads", "torn line", 1, 0),
    ]
    (operations,) = [run["operations"] for run in analysis.runs if run["run_id"] == "bad"]
    assert operations == 9 - 2
    total = [row for row in analysis.rows["waits"] if row["outcome"] == row["kind"] == "all"]
    assert sum(row["operations"] for row in total if row["run_id"] == "bad") == 7
    places = sorted((row["file"], row["line"], row["reason"]) for row in _read(out / "quarantine"))
    parts = traces / "4" / "operations"
    assert places == [
        (str(parts / "part-00000.parquet"), 5, "impossible time"),
        (str(parts / "part-00001.parquet"), 1, "row of another run"),
        (str(traces / "torn" / "reads.jsonl"), 4, "torn line"),
    ]


def test_analysis_reports_a_damaged_run_as_incomplete(
    analyzed: Analyzed,
) -> None:
    (run,) = _of("torn", analyzed.analysis.runs)
    assert run["seed"] is None
    assert [run[table] for table in ("operations", "sends", "reads")] == [0, 4, 3]
    audit = _of("torn", analyzed.analysis.rows["audit"])
    # The lost line may be the read of the last value: nothing is a violation for certain.
    assert audit
    assert not [row for row in audit if row["count"] and row["verdict"] == "violation"]


def test_an_audit_reads_effects_in_lines_of_json(analyzed: Analyzed) -> None:
    counts = {
        row["anomaly"]: row["count"] for row in _of("applied", analyzed.analysis.rows["audit"])
    }
    assert counts["effect_duplicate"] == 1
    assert "k-1" in {row["text"] for row in _read(analyzed.out / "ids")}


def _of(run_id: str, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["run_id"] == run_id]


def test_both_engines_write_the_same_tables(analyses: Mapping[str, Analyzed]) -> None:
    by_spark, by_duckdb = analyses.values()
    assert_same_results(by_spark.out, by_duckdb.out)
    assert by_duckdb.analysis == replace(by_spark.analysis, report=by_duckdb.analysis.report)


# By day the rows of an analysis, which has the tables of both, are compared, and waits by window.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "job", "options"),
    [
        ("windows", WAITS, {"window_us": 1_000}),
        ("waits", WAITS, {}),
        ("occupancy", OCCUPANCY, {}),
    ],
    ids=["windows", "waits", "occupancy"],
)
def test_both_engines_show_the_same_rows(
    name: str, job: Job, options: Mapping[str, Any], spark: SparkSession, traces: Path
) -> None:
    with opened_in(spark, read_trace_set([traces]), None) as opened:
        by_spark = run_opened(job, opened, page=True, **options).rows
    by_duckdb = run_job(job.name, [traces], engine="duckdb", page=True, **options).rows
    assert by_spark == by_duckdb
    assert by_spark[name]


def test_lines_of_json_count_by_the_size_of_their_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def started(*_: object, rows: int, **__: object) -> None:
        raise SessionError(f"rows: {rows}")

    _write_lines(tmp_path / "run", "sends", _sends(9))
    _write_lines(tmp_path / "run", "reads", _reads(9))
    size = sum(file.stat().st_size for file in (tmp_path / "run").iterdir())
    monkeypatch.setattr(spark_traces, "spark_session", started)
    with pytest.raises(SessionError, match=r"rows: \d+") as caught:
        run_job("audit", [tmp_path], engine="spark")
    assert int(str(caught.value).split()[-1]) == pytest.approx(size / 100, abs=2)


def test_strict_stops_at_a_bad_row(
    engine: Engine, write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    backwards = hand_operations[1]._replace(start_us=900, end_us=899)
    trace = write_trace(tmp_path / "trace", [*hand_operations, backwards])
    with pytest.raises(
        TraceError,
        match=r"part-00000\.parquet:9: impossible time: end_us 899 is before start_us 900",
    ):
        _analyze(engine, trace, tmp_path / "out", strict=True)


def test_part_with_broken_data_is_an_error(
    spark: SparkSession, write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    trace = write_trace(tmp_path / "trace", hand_operations)
    part = trace / "operations" / "part-00000.parquet"
    with part.open("r+b") as file:
        file.seek(4)
        file.write(b"\xff" * 64)
    with (
        pytest.raises(PipelineError, match=r"Spark failed: .*part-00000\.parquet") as caught,
        spark_errors(str(tmp_path / "spark.log")),
    ):
        _analyze(spark, trace, tmp_path / "out")
    assert "\n" not in str(caught.value)
