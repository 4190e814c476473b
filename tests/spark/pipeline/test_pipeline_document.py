"""docs/pipeline.md: its Python prints its documented output, and its tables are the real ones.

The analysis is also compared with the simulator's own report of the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.pipeline.engines.result_folder import TABLES
from purgatory.pipeline.engines.run import run_job
from purgatory.pipeline.engines.spark.session import ROWS_PER_TASK
from purgatory.pipeline.jobs.result_orders import MOST_KEYS
from purgatory.pipeline.jobs.run_spans import MOST_POINTS, MOST_WINDOWS
from purgatory.pipeline.report.audit_section import verdict_line
from purgatory.trace.rounded_waits import MAX_RELATIVE_ERROR
from tests.spark.pipeline.analysis_rows import assert_same_results
from tests.unit.documents.documents import columns_in

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

DOCUMENT_FOLDER = Path(__file__).parents[3] / "docs"
DOCUMENT = (DOCUMENT_FOLDER / "pipeline.md").read_text(encoding="utf-8")
PAGES = {
    "waits": "waits",
    "occupancy": "occupancy",
    "audit": "audit",
    "judged": "audit",
    "witnesses": "audit",
}
"""The pages that describe tables of other jobs."""


@pytest.fixture(
    scope="module", params=[pytest.param("spark", marks=pytest.mark.exhaustive), "duckdb"]
)
def printed(
    request: pytest.FixtureRequest,
    slow_follower_trace: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[str]]:
    """The folder in which the document's Python ran, and the lines that it printed.

    Spark analyzes by night: by day it has the tables of DuckDB in test_analysis, of other traces.
    """

    @contextmanager
    def shared_session(
        master: str, *, rows: int, progress: bool | None = False, memory: int | None = None
    ) -> Iterator[SparkSession]:
        assert (master, rows > 0, progress, memory) == ("local[2]", True, False, None)
        yield request.getfixturevalue("spark")

    folder = tmp_path_factory.mktemp("document")
    (folder / "build" / "demo").mkdir(parents=True)
    (folder / "build" / "demo" / "trace").symlink_to(slow_follower_trace)
    lines: list[str] = []
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("purgatory.pipeline.engines.spark.traces.spark_session", shared_session)
        patch.setattr("purgatory.pipeline.engines.spark.session.spark_session", shared_session)
        patch.setattr(
            "purgatory.pipeline.engines.run.run_job", partial(run_job, engine=request.param)
        )
        exec(compile(program, "docs/pipeline.md", "exec"), {"print": lines.append})
    return folder / "build" / "demo" / "notebook", lines


def test_examples_print_their_documented_output(printed: tuple[Path, list[str]]) -> None:
    _, lines = printed
    shown = re.search(r"^    completed: .*\n(?:    .*\n)+", DOCUMENT, re.MULTILINE)
    assert shown is not None
    expected = [line.strip() for line in shown[0].splitlines()]
    assert lines == expected


@pytest.mark.parametrize(
    "table", [t for t in TABLES if t not in ("waits_over_time", "slowest", "ids")]
)
def test_tables_have_the_documented_columns(printed: tuple[Path, list[str]], table: str) -> None:
    page = PAGES.get(table, "pipeline")
    described = columns_in(DOCUMENT_FOLDER / f"{page}.md", table)
    schema = from_arrow_schema(pq.read_table(printed[0] / table).schema)
    kinds = [field.dataType.simpleString().partition("<")[0] for field in schema.fields]
    assert described == list(zip(schema.names, kinds, strict=True))
    if table == "waits":
        assert pq.read_table(printed[0] / "waits_over_time").column_names == schema.names


@pytest.mark.exhaustive
@pytest.mark.parametrize("printed", ["spark"], indirect=True)
def test_duckdb_writes_the_same_tables(
    printed: tuple[Path, list[str]], slow_follower_trace: Path, tmp_path: Path
) -> None:
    # The trace's folder stands in the table `runs`, so it is to have the name that it has there.
    trace = printed[0].parent / "trace"
    assert trace.resolve() == slow_follower_trace
    run_job("analyze", [trace], tmp_path / "out", engine="duckdb")
    assert_same_results(printed[0], tmp_path / "out")


def test_documented_numbers_are_right() -> None:
    pipeline, occupancy = (
        " ".join((DOCUMENT_FOLDER / f"{name}.md").read_text(encoding="utf-8").split())
        for name in ("pipeline", "occupancy")
    )
    assert f"one task per {ROWS_PER_TASK:,} rows" in pipeline
    assert f"at most {MOST_POINTS} buckets" in occupancy
    assert f"at most {MOST_WINDOWS} per run" in pipeline
    assert f"the {MOST_KEYS} keys with the most" in pipeline


def test_the_readme_shows_the_verdict_on_the_demo(printed: tuple[Path, list[str]]) -> None:
    audit = pq.read_table(printed[0] / "audit").to_pylist()
    readme = " ".join((DOCUMENT_FOLDER.parent / "README.md").read_text(encoding="utf-8").split())
    assert f"Order and duplicates: {verdict_line(audit)} Report:" in readme


def test_waits_agree_with_the_simulators_own_table(
    printed: tuple[Path, list[str]], slow_follower_trace: Path
) -> None:
    out, trace = printed[0], slow_follower_trace
    summary = json.loads((trace / "run.json").read_text(encoding="utf-8"))["summary"]
    (run,) = pq.read_table(out / "runs").to_pylist()
    assert run["operations"] == pq.read_table(trace / "operations").num_rows
    assert run["faults"] == [
        {"kind": "stall_follower", "at_ms": 4000, "duration_ms": 4000, "broker": 2}
    ]
    waits = pq.read_table(out / "waits").to_pylist()
    found = {(row["purgatory"], row["kind"], row["outcome"]): row for row in waits}
    compare = 0
    for row in summary["purgatories"]:
        if not row["operations"]:
            assert not any(key[0] == row["purgatory"] for key in found)
            continue
        tables = {"all": row["wait_us"], **row["wait_us_by_outcome"]}
        for outcome, expected in tables.items():
            ours = found.pop((row["purgatory"], row["kind"], outcome))
            count = row["operations"] if outcome == "all" else row[outcome]
            assert ours["operations"] == count
            assert ours["share"] == count / row["operations"]
            assert ours["wait_max_us"] == expected["max"]
            for name in ("p50", "p95", "p99"):
                exact = ours[f"wait_{name}_us"]
                assert exact * (1 - MAX_RELATIVE_ERROR) - 1e-6 <= expected[name] <= exact + 1e-6
                compare += 1
    assert compare >= 30
    # The other rows are those over all kinds, which the simulator's table does not have.
    assert {kind for _, kind, _ in found} == {"all"}
    _check_occupancy(trace, out / "occupancy")


def _check_occupancy(trace: Path, occupancy: Path) -> None:
    """Little's law, exactly: the size summed over time is the waits summed over operations."""
    operations = pq.read_table(trace / "operations")
    sizes = pq.read_table(occupancy)
    for purgatory in ("Produce", "Fetch"):
        waited = operations.filter(
            (pc.field("purgatory") == purgatory) & (pc.field("outcome") != "immediate")
        )
        total = sizes.filter((pc.field("purgatory") == purgatory) & pc.field("broker").is_null())
        width = pc.subtract(total["bucket_end_us"], total["bucket_start_us"])
        area = pc.sum(pc.multiply(total["size_mean"], width)).as_py()
        assert area == pytest.approx(pc.sum(waited["wait_us"]).as_py(), rel=1e-9)
        assert area > 0
