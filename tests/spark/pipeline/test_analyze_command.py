"""The command ``purgatory analyze``: its errors, and its output."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from purgatory.cli.job_output import print_results
from purgatory.cli.main import main
from purgatory.pipeline.engines.results import JobResults
from purgatory.pipeline.jobs.registry import ANALYZE
from tests.browser.pipeline.sweeps.test_report_sweep import write_sweep

WriteTrace = Callable[..., Path]
OPERATION = {
    "broker": 0,
    "keys": 1,
    "timeout_ms": 500,
    "outcome": "completed",
    "kind": "producer",
}
MAPPING = """
[operations]
purgatory = "who"
start_us = "began_us"
end_us = "ended_us"
"""


@pytest.mark.parametrize("engine", ["spark", "duckdb"])
@pytest.mark.parametrize(
    "case",
    [
        "no-trace",
        "no-folder",
        "two-alike",
        "out",
        "master",
        "head",
        "part",
        "rows",
        "version",
        "sweep",
    ],
)
def test_mistake_is_one_line_with_status_2(
    case: str,
    engine: str,
    write_trace: WriteTrace,
    hand_operations: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if (case, engine) == ("master", "duckdb"):
        pytest.skip("DuckDB has none")
    trace = write_trace(tmp_path / "traces" / "1", hand_operations)
    out = tmp_path / "out"
    arguments = ["analyze", str(tmp_path / "traces"), "--out", str(out), "--engine", engine]
    if case == "no-trace":
        shutil.rmtree(trace)
        trace.mkdir()
        expected = "contains no trace"
    elif case == "no-folder":
        arguments[1] = str(tmp_path / "nowhere")
        expected = "there is no such folder"
    elif case == "two-alike":
        write_trace(tmp_path / "traces" / "2", hand_operations)
        expected = "both have the run id 'by-hand-1'"
    elif case == "out":
        (out / "waits").mkdir(parents=True)
        expected = "has results already; allow --overwrite"
    elif case == "master":
        arguments += ["--master", "spark://127.0.0.1:1"]
        expected = "nothing answers at spark://127.0.0.1:1"
    elif case == "sweep":
        arguments += ["--sweep", str(trace)]
        expected = "holds no results of a sweep"
    elif case == "head":
        (trace / "run.json").write_bytes(b'{"schema_version": 1, \xff')
        expected = "run.json: can't be read as JSON"
    elif case == "part":
        part = trace / "operations" / "part-00000.parquet"
        part.write_bytes(part.read_bytes()[:-9])
        arguments.append("--strict")
        expected = "part-00000.parquet: can't be read as Parquet"
    elif case == "rows":
        (trace / "operations" / "part-00000.parquet").unlink()
        arguments.append("--strict")
        expected = "operations: has 0 parts, and run.json says 1"
    else:
        run_file = trace / "run.json"
        head = run_file.read_text(encoding="utf-8")
        run_file.write_text(head.replace('"schema_version": 1', '"schema_version": 9'))
        expected = "schema_version is 9"
    before = sorted(tmp_path.rglob("*"))
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("purgatory analyze: ")
    assert expected in printed.err
    assert printed.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_missing_java_is_one_line(
    write_trace: WriteTrace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = write_trace(tmp_path / "trace", [])
    monkeypatch.setattr("purgatory.pipeline.engines.spark.java._bundled_java_home", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = ["analyze", str(trace), "--out", str(tmp_path / "out"), "--engine", "spark"]
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert "purgatory analyze: Spark needs Java 17 or later" in printed.err
    assert printed.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]


def test_duckdb_analyzes_with_all_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, sweep, out = tmp_path / "trace", write_sweep(tmp_path / "my sweep"), tmp_path / "out"
    trace.mkdir()
    began = [{"who": "Produce", "began_us": 1000 * n, "ended_us": 3000 * n} for n in range(1, 5)]
    lines = [json.dumps({**OPERATION, **one, "operation": n}) for n, one in enumerate(began)]
    (trace / "operations.jsonl").write_text("\n".join(lines), encoding="utf-8")
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(MAPPING, encoding="utf-8")
    arguments = ["analyze", str(trace), "--out", str(out), "--engine", "duckdb"]
    arguments += ["--mapping", str(mapping), "--sweep", str(sweep), "--strict", "--progress"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert all(line.startswith("DuckDB: ") for line in printed.err.splitlines())
    assert ["Produce", "completed", "4", "100.00", "5.00", "7.70", "7.94", "8.00"] in [
        line.split() for line in printed.out.splitlines()
    ]
    assert "<h2>Sweep my sweep</h2>" in (out / "report.html").read_text(encoding="utf-8")
    assert main(arguments) == 2
    assert "has results already; allow --overwrite" in capsys.readouterr().err
    assert main([*arguments, "--overwrite"]) == 0
    assert pq.read_table(out / "waits")["wait_max_us"].to_pylist()[-1] == 8000
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".out")] == []


def test_ten_runs_are_printed_and_the_interrupted_one_is_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = [{"run_id": f"run-{number:02}", "complete": number != 3} for number in range(13)]
    waits = [
        {
            "run_id": run["run_id"],
            "purgatory": "Produce",
            "kind": kind,
            "outcome": outcome,
            "operations": 1200,
            "share": 1.0,
            **{f"wait_{name}_us": wait_us for name in ("p50", "p95", "p99", "max")},
        }
        for run in runs
        if run["run_id"] != "run-05"
        for kind in ("producer", "all")
        for outcome, wait_us in (("pending", 1500), ("all", None))
    ]
    judged = [{"run_id": run["run_id"], "sent": 0} for run in runs]
    shown = {"waits": waits, "latencies": [], "audit": [], "judged": judged}
    print_results(JobResults(ANALYZE, runs, shown, report=Path("out") / "report.html"), "out")
    printed = capsys.readouterr().out
    assert re.findall(r"Waits in (\S+), in milliseconds|(run-05): nothing was judged", printed) == [
        ("", "run-05") if number == 5 else (f"run-{number:02}", "") for number in range(10)
    ]
    after_third = printed.split("Waits in run-03")[1].split("Waits in run-04")[0]
    assert "incomplete: this run was interrupted" in after_third
    assert printed.count("incomplete") == 1
    rows = [line.split() for line in after_third.splitlines()]
    assert ["Produce", "pending", "1,200", "100.00", *["1.50"] * 4] in rows
    assert ["all", "1,200", "100.00", *["-"] * 4] in rows
    assert "... and 3 more runs, in the report" in printed
    assert printed.endswith("Report: out/report.html\n")


def test_analyze_by_duckdb_imports_no_heavy_module(simulated: Path, tmp_path: Path) -> None:
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules))\n"
        "from purgatory.cli import run\n"
        "run()\n"
    )
    trace, out = str(simulated / "slow-follower"), str(tmp_path / "out")
    arguments = ["analyze", trace, "--out", out, "--engine", "duckdb"]
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    imported = set(ran.stdout.splitlines()[-1].split())
    assert {"pyarrow", "duckdb", "click"} <= imported
    heavy = {"aiohttp", "asyncio", "numpy", "pandas", "plotly", "pydantic", "pyspark", "typer"}
    assert imported & heavy == set()
