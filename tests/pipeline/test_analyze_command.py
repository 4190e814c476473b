"""``purgatory analyze`` as a person meets it: its errors, and a run on a real cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest

from purgatory.cli.analyze import _print as print_analysis
from purgatory.cli.main import main
from purgatory.pipeline.analyze import Analysis
from purgatory.pipeline.java import find_java_home

WriteTrace = Callable[..., Path]
CLUSTER_TIMEOUT_S = 110
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for a Java that lives some seconds, as four or five do in the test of a cluster."""


@pytest.mark.parametrize(
    "case",
    ["no-trace", "no-folder", "two-alike", "out", "master", "head", "part", "rows", "version"],
)
def test_a_mistake_is_one_line_and_status_2(
    case: str,
    write_trace: WriteTrace,
    hand_operations: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = write_trace(tmp_path / "traces" / "1", hand_operations)
    out = tmp_path / "out"
    arguments = ["analyze", str(tmp_path / "traces"), "--out", str(out)]
    if case == "no-trace":
        (trace / "run.json").unlink()
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
    elif case == "head":
        (trace / "run.json").write_bytes(b'{"schema_version": 1, \xff')
        expected = "run.json: can't be read as JSON"
    elif case == "part":
        part = trace / "operations" / "part-00000.parquet"
        part.write_bytes(part.read_bytes()[:-9])
        expected = "part-00000.parquet: can't be read as Parquet"
    elif case == "rows":
        (trace / "operations" / "part-00000.parquet").unlink()
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


def test_no_java_is_one_line_too(
    write_trace: WriteTrace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = write_trace(tmp_path / "trace", [])
    monkeypatch.setattr("purgatory.pipeline.java._bundled_java_home", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["analyze", str(trace), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    assert "purgatory analyze: Spark needs Java 17 or later" in printed.err
    assert printed.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]


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
    print_analysis(Analysis(runs, waits, Path("out") / "report.html"))
    printed = capsys.readouterr().out
    assert re.findall(r"Waits in (\S+), in milliseconds|(run-05): no operations", printed) == [
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


class _Daemon:
    """A process of the cluster, and the lines that it has logged."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self._process = process
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first match in any line, once there is one."""
        with self._news:
            while True:
                for line in self.lines:
                    if match := re.search(pattern, line):
                        return match
                if not self._reader.is_alive():
                    pytest.fail(f"ended without {pattern!r}:\n" + "\n".join(self.lines))
                if not self._news.wait(CLUSTER_TIMEOUT_S):
                    pytest.fail(f"silent without {pattern!r}:\n" + "\n".join(self.lines))

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._reader.join(30)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()


@contextmanager
def _daemon(folder: Path, *arguments: str) -> Iterator[_Daemon]:
    """A daemon of Spark from the Python package, on loopback."""
    home = Path(pyspark.__file__).parent
    folder.mkdir()
    process = subprocess.Popen(
        [str(home / "bin" / "spark-class"), *arguments],
        cwd=folder,
        env={
            **os.environ,
            "JAVA_HOME": str(find_java_home(os.environ)),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder),
            "SPARK_DAEMON_MEMORY": "256m",
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    daemon = _Daemon(process)
    try:
        yield daemon
    finally:
        daemon.stop()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_standalone_cluster(
    write_trace: WriteTrace, hand_operations: list[Any], tmp_path: Path
) -> None:
    trace = write_trace(tmp_path / "trace", hand_operations)
    deploy = "org.apache.spark.deploy"
    loopback = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as cluster:
        master = cluster.enter_context(
            _daemon(tmp_path / "master", f"{deploy}.master.Master", *loopback, "--port", "0")
        )
        address = master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
        resources = ("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / "work"))
        worker = cluster.enter_context(
            _daemon(tmp_path / "worker", f"{deploy}.worker.Worker", *loopback, *resources, address)
        )
        # The application waits for the worker: both start at the same time.
        out = tmp_path / "out"
        command = [sys.executable, "-m", "purgatory", "analyze", str(trace), "--out", str(out)]
        answer = subprocess.run(
            [*command, "--master", address],
            env={
                **os.environ,
                "JAVA_TOOL_OPTIONS": QUICK_JAVA,
                "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.shuffle.partitions=2 pyspark-shell",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=CLUSTER_TIMEOUT_S,
        )
        assert answer.returncode == 0, answer.stderr
        master.wait_for("Registered app purgatory analyze")
        worker.wait_for("Successfully registered with master")
        worker.wait_for("Asked to launch executor .* for purgatory analyze")
    assert answer.stderr == ""
    assert "Waits in by-hand-1" in answer.stdout
    assert f"Report: {out / 'report.html'}" in answer.stdout
    assert sorted(path.name for path in out.iterdir()) == [
        "occupancy",
        "report.html",
        "runs",
        "waits",
    ]
    rows = pq.read_table(out / "waits").to_pylist()
    counts = {
        (row["purgatory"], row["outcome"]): row["operations"]
        for row in rows
        if row["kind"] == "all"
    }
    assert counts == {
        ("Fetch", "completed"): 1,
        ("Fetch", "cancelled"): 1,
        ("Fetch", "all"): 2,
        ("Produce", "immediate"): 1,
        ("Produce", "completed"): 3,
        ("Produce", "expired"): 1,
        ("Produce", "pending"): 1,
        ("Produce", "all"): 6,
    }
