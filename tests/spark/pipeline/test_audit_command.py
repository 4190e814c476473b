"""The command ``purgatory audit``: its output, its tables, its exit status."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.cli.main import main
from purgatory.pipeline.engines.engine import Engine, RunOptions
from purgatory.pipeline.engines.run import run_job
from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.trace_set import find_traces
from purgatory.pipeline.jobs.audit.client_settings import configuration_of
from tests.spark.pipeline.audit_injections import injected
from tests.spark.pipeline.conftest import OPERATIONS, READS, SENDS
from tests.unit.documents.documents import columns_in

DOCUMENT = Path(__file__).parents[3] / "docs" / "audit.md"
PRODUCERS = [
    {"group": "writers", "idempotence": False, "max_in_flight": 5, "retries": 9}
    | {"single_writer": True, "acks": -1}
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace in which three records lie behind later ones, and settings that permit it."""
    return _write(tmp_path / "trace", PRODUCERS)


def _write(
    folder: Path,
    producers: list[dict[str, Any]],
    complete: bool = True,
    *,
    bad: str = "",
    without: Collection[str] = (),
) -> Path:
    """Write the trace; all rows of one table may be bad, and tables may have none."""
    rows, _ = injected("retry_reorder", 3, seed=4)
    parts = {
        "operations": (OPERATIONS, []),
        "sends": (SENDS, [{**send._asdict(), "size_bytes": 1} for send in rows.sends]),
        "reads": (READS, [read._asdict() for read in rows.reads]),
    }
    for name, (_, table) in parts.items():
        if name == bad:
            table[:] = [{**row, "partition": -1} for row in table]
        if name in without:
            table.clear()
    for name, (schema, table) in parts.items():
        (folder / name).mkdir(parents=True)
        made = pa.Table.from_pylist([{"run_id": "run-1", **row} for row in table], schema=schema)
        pq.write_table(made, folder / name / "part-00000.parquet")
    head = {
        "schema_version": 2,
        "run_id": "run-1",
        "scenario": "run",
        "seed": 1,
        "complete": complete,
        "started": 0,
        "duration_ms": 1,
        "producers": producers,
        "consumers": [
            {"group": group, "assignment": "assign", "isolation": "read_committed"}
            for group in ("readers", "others")
        ],
        "tables": {name: {"parts": 1, "rows": len(rows)} for name, (_, rows) in parts.items()},
    }
    (folder / "run.json").write_text(json.dumps(head), encoding="utf-8")
    return folder


@pytest.fixture
def in_the_shared_session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command take the session of these tests, if it needs one."""

    @contextmanager
    def shared(master: str, **_: object) -> Iterator[SparkSession]:
        assert master == "local[2]"
        yield request.getfixturevalue("spark")

    monkeypatch.setattr("purgatory.pipeline.engines.spark.traces.spark_session", shared)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("engine", "job", "read"),
    [
        ("spark", "waits", "operations"),
        pytest.param("spark", "audit", "reads", marks=pytest.mark.exhaustive),
        ("duckdb", "audit", "reads"),
    ],
)
@pytest.mark.usefixtures("in_the_shared_session")
def test_job_ignores_broken_files_of_other_tables(
    engine: Engine, job: str, read: str, trace: Path
) -> None:
    for table in ("operations", "reads"):
        (trace / table / "part-00000.parquet").write_bytes(b"PAR1 and no more")
    found = run_job(job, [trace], engine=engine, run_options=RunOptions("local[2]"))
    assert found.bad_rows == {"run-1": 1}, f"of the {read} alone"


def test_audit_of_permitted_anomalies_has_status_0(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(trace), "--engine", "duckdb"]) == 0
    printed = capsys.readouterr()
    assert re.search(r"retry_reorder +writers +3 +permitted +idempotence=false", printed.out)
    assert "not looked for: key_order_violation" in printed.out
    assert "No violations in 1 run\n" in printed.out


@pytest.mark.parametrize("engine", [pytest.param("spark", marks=pytest.mark.exhaustive), "duckdb"])
@pytest.mark.usefixtures("in_the_shared_session")
@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ({"bad": "sends"}, "no sends in the trace"),
        ({"bad": "reads"}, "no reads in the trace"),
        ({"without": ["sends"]}, "no sends in the trace"),
        ({"without": ["reads"]}, "no reads in the trace"),
        ({"without": ["sends", "reads"]}, "no sends in the trace"),
    ],
)
def test_audit_of_empty_traces_has_status_3(
    engine: str,
    lacks: dict[str, Any],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = str(_write(tmp_path / "trace", PRODUCERS, **lacks))
    chosen = [trace, "--master", "local[2]", "--engine", engine]
    for expecting in ([], ["--expect", "once"]):
        assert main(["audit", *chosen, *expecting]) == 3
        printed = " ".join(capsys.readouterr().out.split())
        assert re.search(rf"run-1: could not be decided: .*duplicate.*\(.*{said}", printed)
    assert main(["audit", *chosen, "--allow-empty"]) == 0


@pytest.mark.parametrize("engine", [pytest.param("spark", marks=pytest.mark.exhaustive), "duckdb"])
@pytest.mark.usefixtures("in_the_shared_session")
def test_permitted_anomaly_against_an_expectation_is_a_violation(
    engine: str, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--master", "local[2]", "--engine", engine]
    out = tmp_path / "out"
    expecting = ["--expect", "order", "--out", str(out), "--witnesses", "2"]
    assert main(["audit", str(trace), *chosen, *expecting]) == 1
    printed = capsys.readouterr()
    assert re.search(r"retry_reorder +writers +3 +violation +order expected", printed.out)
    assert "3 violations in 1 of 1 run\n" in printed.out
    assert sorted(path.name for path in out.iterdir()) == ["audit", "judged", "witnesses"]
    for table in ("audit", "witnesses"):
        assert _columns(out / table) == columns_in(DOCUMENT, table)
    witnesses = pq.read_table(out / "witnesses").to_pylist()
    assert [row["rank"] for row in witnesses if row["anomaly"] == "retry_reorder"] == [1, 2]
    assert main(["audit", str(trace), *chosen, "--out", str(out)]) == 2
    assert "has results already; allow --overwrite" in capsys.readouterr().err


def _columns(table: Path) -> list[tuple[str, str]]:
    names = {"int32": "int", "int64": "bigint", "large_string": "string"}
    schema = pq.read_table(table).schema
    kinds = ["array" if pa.types.is_list(one.type) else str(one.type) for one in schema]
    return [(field.name, names.get(kind, kind)) for field, kind in zip(schema, kinds, strict=True)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (["trace", "--expect", "luck"], "'luck' is not one of 'order', 'once'"),
        (["trace", "--witnesses", "-1"], "not in the range 0<=x<="),
        (["trace", "--master", "sparky"], "'sparky' is no Spark master"),
        (["trace", "--out", "trace"], "overlap"),
    ],
)
def test_mistake_is_one_line_with_status_2(
    arguments: list[str],
    expected: str,
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(trace.parent)
    assert main(["audit", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("purgatory audit: ")
    assert expected in printed.err
    assert printed.err.count("\n") == 1


def test_settings_come_from_the_head_of_the_trace(tmp_path: Path) -> None:
    folder = _write(tmp_path / "one", PRODUCERS, complete=False)
    run = configuration_of(find_traces([folder]))["run-1"]
    assert not run.complete
    (producers,) = run.producers
    assert (producers.idempotence, producers.max_in_flight, producers.single_writer) == (
        False,
        5,
        True,
    )
    assert {one.group: one.assignment for one in run.consumers} == {
        "readers": "assign",
        "others": "assign",
    }


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({"producers": PRODUCERS * 2}, "names the group 'writers' of producers more than once"),
        (
            {"consumers": [{"group": "readers", "assignment": "manual"}]},
            "assignment of the consumers 'readers' must be assign or subscribe, and is 'manual'",
        ),
    ],
)
def test_contradictory_head_is_refused(head: Mapping[str, Any], expected: str, trace: Path) -> None:
    document = json.loads((trace / "run.json").read_text())
    (trace / "run.json").write_text(json.dumps({**document, **head}))
    with pytest.raises(TraceError, match=re.escape(expected)):
        configuration_of(find_traces([trace]))
