"""The first line of each job, and its exit status, of traces with nothing or with half to judge."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import purgatory
from purgatory.cli.main import main, program
from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.ingest.column_mapping import Source
from purgatory.pipeline.ingest.trace_set import read_trace_set
from purgatory.pipeline.jobs.chain import read_chain
from purgatory.sweeps.basis import SweepBasis
from purgatory.sweeps.page import sweep_page
from purgatory.trace.trace_schema import TABLES
from purgatory.trace.trace_writer import arrow_schema
from tests.browser.pipeline.sweeps.test_report_sweep import write_sweep

Rows = Mapping[str, Sequence[Mapping[str, Any] | str]]

OPERATION = {
    "broker": 1,
    "purgatory": "Produce",
    "operation": 1,
    "keys": 1,
    "timeout_ms": 100,
    "start_us": 0,
    "end_us": 10,
    "outcome": "completed",
    "kind": "producer",
}
SEND = {
    "group": "w",
    "producer": 0,
    "sequence": 0,
    "attempt": 1,
    "key": 1,
    "value_id": 7,
    "acks": -1,
    "outcome": "ok",
    "send_us": 0,
    "answer_us": 5,
    "topic": "t",
    "partition": 0,
    "offset": 0,
    "size_bytes": 1,
}
READ = {
    "group": "r",
    "consumer": 0,
    "poll": 1,
    "topic": "t",
    "partition": 0,
    "offset": 0,
    "value_id": 7,
    "time_us": 9,
    "applied": True,
}
WHOLE: Rows = {"operations": [OPERATION], "sends": [SEND], "reads": [READ]}
TORN = '{"torn'
TRACES: Mapping[str, Rows] = {
    "empty": {"operations": [], "sends": [], "reads": []},
    "foreign": {table: [{"level": "info", "message": "started"}] for table in WHOLE},
    "half": {table: [*rows, TORN] for table, rows in WHOLE.items()},
    "bad": {
        table: [{**row, "run_id": "other"} for row in rows if isinstance(row, dict)]
        for table, rows in WHOLE.items()
    },
}
_NOTHING = "nothing was judged"
FIRST_LINES: Mapping[str, Mapping[str, str]] = {
    "empty": {
        "waits": f"empty: {_NOTHING}: no operations",
        "occupancy": f"empty: {_NOTHING}: nothing was pending",
        "audit": f"empty: {_NOTHING}: the trace has no rows",
        "analyze": f"empty: {_NOTHING}: the trace has no rows",
    },
    "foreign": {
        "waits": f"foreign: {_NOTHING}: 1 row (operations: missing column) left out",
        "occupancy": f"foreign: {_NOTHING}: 1 row (operations: missing column) left out",
        "audit": f"foreign: {_NOTHING}: 1 file (reads: missing column), 1 file (sends: ",
        "analyze": f"foreign: {_NOTHING}: 1 row (operations: missing column), ",
    },
    "half": {
        "waits": "half: left out: 1 row (operations: torn line)",
        "occupancy": "half: left out: 1 row (operations: torn line)",
        "audit": (
            "half: judged: 1 sent, 1 acknowledged, 1 read, 0 committed, 1 applied; left out: 1 row "
            "(reads: torn line), 1 row (sends: torn line); not looked for: key_order_violation, "
        ),
        "analyze": "half: judged: 1 operation, 1 sent, 1 acknowledged, 1 read, 0 committed, 1 ",
    },
    "bad": {
        "waits": f"bad: {_NOTHING}: 1 row (operations: row of another run) left out",
        "occupancy": f"bad: {_NOTHING}: 1 row (operations: row of another run) left out",
        "audit": f"bad: {_NOTHING}: 1 row (reads: row of another run), 1 row (sends: ",
        "analyze": f"bad: {_NOTHING}: 1 row (operations: row of another run), ",
    },
}

_COUNTED = (
    "produce_operations",
    "fetch_follower_operations",
    "fetch_consumer_operations",
    "records",
)
POINT = {"point": 0, "seed": 1, **dict.fromkeys(_COUNTED, 2)}
FAILED = {"point": 1, "seed": 1, "error": "ScenarioError: too many"}
SWEEPS: Mapping[str, tuple[Sequence[Mapping[str, Any]], str, int]] = {
    "empty": (
        [POINT | dict.fromkeys(_COUNTED, 0)],
        f"{_NOTHING}: no operations or records in 1 scenario",
        3,
    ),
    "half": (
        [POINT, FAILED],
        "judged: 1 of 2 scenarios, 6 operations, 2 records; left out: 1 scenario (failed)",
        0,
    ),
    "bad": ([FAILED, FAILED], f"{_NOTHING}: 2 scenarios (failed) left out", 3),
    "whole": ([POINT, POINT], "judged: 2 of 2 scenarios, 12 operations, 4 records", 0),
}
"""The rows of the table `points`, what is said of them, and the exit status."""


def write(folder: Path, rows: Rows) -> Path:
    folder.mkdir()
    for table, lines in rows.items():
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        (folder / f"{table}.jsonl").write_text("".join(f"{text}\n" for text in texts))
    return folder


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace of each kind."""
    folder = tmp_path_factory.mktemp("traces")
    for kind, rows in TRACES.items():
        write(folder / kind, rows)
    return folder


def run(job: str, trace: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(program, [job, str(trace), "--engine", "duckdb", *arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize("job", ["waits", "occupancy", "audit"])
def test_job_says_first_what_it_judged(job: str, traces: Path) -> None:
    status, output = run(job, traces)
    for kind, lines in FIRST_LINES.items():
        assert any(line.startswith(lines[job]) for line in output.splitlines()), (kind, output)
    assert output.startswith(tuple(lines[job] for lines in FIRST_LINES.values()))
    assert status == 3


@pytest.mark.parametrize(("arguments", "status"), [((), 3), (("--allow-empty",), 0)])
def test_empty_run_ends_a_job_with_3(traces: Path, arguments: list[str], status: int) -> None:
    assert run("waits", traces / "empty", *arguments)[0] == status
    assert run("waits", traces / "half", *arguments)[0] == 0


@pytest.fixture(scope="module")
def analyzed(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, str]:
    """The exit status, the output and the page of an analysis of all traces."""
    out = tmp_path_factory.mktemp("out") / "out"
    status, output = run("analyze", traces, "--out", str(out))
    return status, output, (out / "report.html").read_text()


@pytest.mark.parametrize("kind", TRACES)
def test_analysis_says_first_what_it_judged(analyzed: tuple[int, str, str], kind: str) -> None:
    status, output, page = analyzed
    assert status == 3
    assert any(line.startswith(FIRST_LINES[kind]["analyze"]) for line in output.splitlines())
    part = page[page.index(f">{kind}</h2>") :]
    verdict = part[part.index('<p class="verdict') :].partition("</p>")[0]
    if kind == "half":
        assert "Judged: 1 operation, 1 sent" in verdict
        assert "left out: 1 row (operations: torn line)" in verdict
    else:
        assert verdict.startswith('<p class="verdict unjudged"><strong>Unjudged.</strong> Nothing')
    assert "Nothing went wrong" not in page
    assert '<span class="mark">fine' not in page


def test_passed_audit_says_what_it_rests_on(traces: Path) -> None:
    findings = purgatory.audit(traces / "half", expect=["once"])
    findings.assert_no_violations()
    assert findings.basis.startswith("judged: 1 sent, 1 acknowledged, 1 read, 0 committed, 1 appl")
    with pytest.raises(AssertionError, match=r"could not decide:\n\(nothing was judged: 1 row "):
        purgatory.audit(traces / "bad").assert_no_violations()


def test_operations_alone_are_judged_by_an_analysis(tmp_path: Path) -> None:
    trace, out = write(tmp_path / "waits", {"operations": [OPERATION]}), tmp_path / "out"
    status, output = run("analyze", trace, "--out", str(out))
    assert output.startswith("waits: judged: 1 operation, 0 sent, 0 acknowledged")
    assert status == 0
    assert '<p class="verdict unjudged' not in (out / "report.html").read_text()
    assert run("audit", trace)[0] == 3


def write_parquet(folder: Path, rows: Rows, run_id: str) -> Path:
    """A trace of ours, without its `run.json`."""
    for table, ones in rows.items():
        (folder / table).mkdir(parents=True)
        full = [
            {**dict.fromkeys(TABLES[table]), "wait_us": 10, "run_id": run_id, **dict(one)}
            for one in ones
            if isinstance(one, dict)
        ]
        part = pa.Table.from_pylist(full, schema=arrow_schema(table))
        pq.write_table(part, folder / table / "part-00000.parquet")
    return folder


@pytest.mark.parametrize("job", ["audit", "analyze", "waits"])
def test_trace_without_its_head_is_read_as_incomplete(job: str, tmp_path: Path) -> None:
    trace = write_parquet(tmp_path / "renamed", WHOLE, "steady-1")
    arguments = ["--out", str(tmp_path / "out")] if job == "analyze" else []
    status, output = run(job, trace, *arguments)
    first, *others = output.splitlines()
    assert first.startswith("steady-1: ")
    assert "left out: 1 file (run.json: missing run.json)" in first
    assert ("judged: " in first and "1 sent, 1 acknowledged, 1 read" in first) is (job != "waits")
    assert f"  {trace / 'run.json'}: is missing: whether the trace is whole" in others[0]
    assert "copy it back beside the tables" in others[0]
    assert status == 0
    with pytest.raises(TraceError, match=r"run\.json: is missing"):
        read_trace_set([trace], strict=True)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_without_a_head_name_their_run(kind: str, tmp_path: Path) -> None:
    for table, row in (("sends", SEND), ("reads", READ)):
        rows = [{"run_id": "mine", **row}, {"run_id": "other", **row}]
        path = tmp_path / f"{table}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        else:
            lines = [",".join(rows[0]), *(",".join(map(str, one.values())) for one in rows)]
            path.write_text("\n".join(lines))
    _, output = run("audit", tmp_path)
    assert output.startswith("mine: judged: 1 sent, 1 acknowledged, 1 read, ")
    assert "1 row (sends: row of another run)" in output
    assert "run_id is other, in the trace of mine, as its run.json or its folder" in output


def test_constant_of_a_mapping_names_the_run(tmp_path: Path) -> None:
    trace = write(tmp_path / "folder", {"sends": [SEND], "reads": [READ]})
    constant = {"run_id": Source(None, value="mine")}
    (trace_read,) = read_trace_set([trace], {"sends": constant, "reads": constant}).traces
    assert trace_read.run_id == "mine"


def swept(points: Sequence[Mapping[str, Any]]) -> SweepBasis:
    """The basis that these rows of the table `points` give."""
    columns = [("error", pa.string()), *((name, pa.int64()) for name in POINT)]
    queries = {one.name: one.query for one in read_chain("sweeps/failures.sql", most_named=1)}
    with duckdb.connect() as connection:
        table = pa.Table.from_pylist([dict(row) for row in points], schema=pa.schema(columns))
        connection.register("points", table)
        query = connection.execute(queries["sweep_basis"])
        names = [name for name, *_ in query.description or ()]
        return SweepBasis(**dict(zip(names, query.fetchall()[0], strict=True)))


@pytest.mark.parametrize("kind", SWEEPS)
def test_sweep_says_first_what_it_judged(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = pytest.importorskip("purgatory.sweeps.run", exc_type=ImportError)
    points, line, status = SWEEPS[kind]
    basis = swept(points)
    done = run.Sweep(None, None, [], basis, [], tmp_path / "sweep.html")
    session = "purgatory.pipeline.engines.spark.session.spark_session"
    monkeypatch.setattr(session, lambda *_, **__: nullcontext())
    monkeypatch.setattr(run, "sweep_all", lambda *_, **__: done)
    file = tmp_path / "sweep.toml"
    file.write_text(f'name = "{kind}"\nscenario = "steady"\ngrid."topic.partitions" = [1, 2]\n')
    command = ["sweep", str(file), "--out", str(tmp_path / "out")]
    assert main(command) == status
    assert capsys.readouterr().out.startswith(f"{kind}: {line}\n")
    assert main([*command, "--check"]) == (1 if kind == "half" else status)

    head = {"name": kind, "description": "", "scenario": "steady", "points": 2, "basis": basis}
    verdict = sweep_page(head, [], []).partition("</h1>")[2].partition("</p>")[0]
    mark = 'unjudged"><strong>Unjudged.</strong> ' if status else 'none">'
    assert verdict == f'<p class="verdict {mark}{line[0].upper()}{line[1:]}.'


@pytest.mark.parametrize("kind", [*SWEEPS, "unknown"])
def test_analysis_says_what_its_sweep_rests_on(kind: str, tmp_path: Path) -> None:
    points, line, status = SWEEPS.get(kind, ((), "what was judged is unknown: run purgatory s", 0))
    sweep = write_sweep(tmp_path / "my sweep", swept(points) if points else None)
    trace, out = write(tmp_path / "trace", WHOLE), tmp_path / "out"
    ended, output = run("analyze", trace, "--out", str(out), "--sweep", str(sweep))
    assert output.startswith(f"my sweep: {line}")
    assert "\ntrace: judged: 1 operation, 1 sent, " in output
    assert ended == status
    shown = (out / "report.html").read_text().partition("Sweep my sweep</h2>")[2]
    assert f"{line[0].upper()}{line[1:]}" in shown.partition("</p>")[0]
    assert ("ScenarioError: many" in shown) is (kind in ("half", "bad"))


def test_audit_says_where_the_records_of_its_cases_are(tmp_path: Path) -> None:
    rows = {**WHOLE, "reads": [{**READ, "value_id": 8, "offset": 1}]}
    trace, where = write(tmp_path / "trace", rows), "The records of each case: in the page"
    assert where in run("audit", trace)[1]
    assert where not in run("audit", trace, "--report", str(tmp_path / "page.html"))[1]
    assert where not in run("audit", trace, "--out", str(tmp_path / "out"))[1]
    assert where not in run("audit", write(tmp_path / "fine", WHOLE))[1]
