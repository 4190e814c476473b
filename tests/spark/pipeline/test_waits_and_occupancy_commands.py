"""The commands ``purgatory waits`` and ``purgatory occupancy``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.cli.main import main
from purgatory.pipeline.engines.spark import traces as spark_traces

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

WriteTrace = Callable[..., Path]
MOSTLY_DUCKDB = (pytest.param("spark", marks=pytest.mark.exhaustive), "duckdb")
"""By day the rows that both engines show are compared, and their quarantines; Spark's commands run
on a store, on a cluster, and until a signal ends them."""


@pytest.fixture
def shared_session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commands that need a session use that of the tests: a process has one."""

    @contextmanager
    def opened(*_arguments: Any, **_settings: Any) -> Iterator[SparkSession]:
        yield request.getfixturevalue("spark")

    monkeypatch.setattr(spark_traces, "spark_session", opened)


def _columns(folder: Path) -> dict[str, str]:
    return {field.name: str(field.type) for field in pq.read_table(folder).schema}


@pytest.mark.parametrize("engine", MOSTLY_DUCKDB)
@pytest.mark.usefixtures("shared_session")
def test_waits_prints_its_tables_and_writes_them(
    engine: str, slow_follower_trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["waits", str(slow_follower_trace), "--out", str(out), "--slowest", "2"]
    arguments += ["--engine", engine]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "Waits in slow-follower-1, in milliseconds" in printed
    assert "p99.9" in printed
    assert "…" not in printed, "80 columns are enough"
    expired = next(line for line in printed.splitlines() if "expired" in line and "1.19" in line)
    assert expired.split()[:4] == ["expired", "58", "1.19", "1,500"]
    assert printed.count(" expired  events-") == 4
    assert _columns(out / "waits") == {
        "run_id": "string",
        "window_start_us": "int64",
        "window_end_us": "int64",
        "purgatory": "string",
        "kind": "string",
        "topic": "string",
        "outcome": "string",
        "operations": "int64",
        "share": "double",
        "expiry_ratio": "double",
        "wait_mean_us": "double",
        "wait_p50_us": "double",
        "wait_p95_us": "double",
        "wait_p99_us": "double",
        "wait_p999_us": "double",
        "wait_max_us": "int64",
    }
    assert sorted(path.name for path in out.iterdir()) == ["slowest", "waits"]
    assert main(arguments) == 2
    assert "has results already" in capsys.readouterr().err
    again = ["--overwrite", "--window", "6s", "--percentiles", "approximate"]
    assert main([*arguments, *again]) == 0
    assert "by window of time" in capsys.readouterr().out
    starts = set(pq.read_table(out / "waits")["window_start_us"].to_pylist())
    assert starts == {0, 6_000_000, 12_000_000}


@pytest.mark.parametrize("engine", MOSTLY_DUCKDB)
@pytest.mark.usefixtures("shared_session")
def test_occupancy_prints_tables_and_names_interrupted_runs(
    engine: str,
    slow_follower_trace: Path,
    write_trace: WriteTrace,
    hand_operations: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    empty = write_trace(tmp_path / "1", [], run_id="empty")
    truncated = write_trace(
        tmp_path / "2", hand_operations, run_id="cut", complete=False, duration_ms=0
    )
    out = tmp_path / "out"
    traces = [str(folder) for folder in (slow_follower_trace, empty, truncated)]
    assert main(["occupancy", *traces, "--out", str(out), "--engine", engine]) == 3  # one is empty
    printed = capsys.readouterr().out
    assert "incomplete: this run was interrupted" in printed
    assert "empty: " in printed
    assert "faults: stall_follower 2" in printed
    assert "20 on events-0, 19 on events-1, 3 on events-2" in printed
    assert "Hot keys in slow-follower-1" in printed
    assert set(_columns(out / "peaks")) >= {"at_us", "size", "kinds", "keys", "faults"}
    assert set(_columns(out / "hot_keys")) >= {"rank", "key", "mean_parked", "entries"}
    assert set(_columns(out / "key_occupancy")) >= {"key", "size_mean", "size_max"}
    assert pq.read_table(out / "occupancy").num_rows > 0


@pytest.mark.parametrize("engine", MOSTLY_DUCKDB)
@pytest.mark.usefixtures("shared_session")
def test_waits_names_empty_and_interrupted_runs(
    engine: str,
    write_trace: WriteTrace,
    hand_operations: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_trace(tmp_path / "1", [], run_id="empty")
    write_trace(tmp_path / "2", hand_operations, run_id="cut", complete=False, duration_ms=0)
    assert main(["waits", str(tmp_path), "--engine", engine]) == 3
    printed = capsys.readouterr().out
    assert "incomplete: this run was interrupted" in printed
    assert "empty: " in printed


@pytest.mark.parametrize("engine", MOSTLY_DUCKDB)
@pytest.mark.usefixtures("shared_session")
def test_bad_row_is_quarantined_or_stops_a_strict_command(
    engine: str,
    write_trace: WriteTrace,
    hand_operations: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    backwards = hand_operations[1]._replace(start_us=900, end_us=899)
    write_trace(tmp_path / "trace", [*hand_operations, backwards])
    arguments = ["waits", str(tmp_path / "trace"), "--out", str(tmp_path / "out")]
    arguments += ["--engine", engine]
    assert main(arguments) == 0
    assert "quarantined: operations: impossible time: 1 row\n" in capsys.readouterr().out
    counted = pq.read_table(tmp_path / "out" / "waits").to_pylist()
    overall = [row for row in counted if (row["kind"], row["outcome"]) == ("all", "all")]
    of_all_topics = [row["operations"] for row in overall if row["topic"] == "*"]
    assert sum(of_all_topics) == len(hand_operations)
    assert pq.read_table(tmp_path / "out" / "quarantine").num_rows == 1
    assert main([*arguments, "--overwrite", "--strict"]) == 2
    assert "impossible time" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["waits", "nowhere"], "there is no such folder"),
        (["occupancy", "nowhere"], "there is no such folder"),
        (["waits", "nowhere", "--window", "3"], "'3' is not a duration"),
        (["waits", "nowhere", "--window", "0s"], "'0s' is too short"),
        (["waits", "nowhere", "--window", f"{10**20}h"], "is too long"),
        (["waits", "nowhere", "--percentiles", "nearly"], "'nearly'"),
        (["waits", "nowhere", "--slowest", "0"], "not in the range 1<=x<="),
        (["occupancy", "nowhere", "--hot-keys", "none"], "'none' is not a valid integer"),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line_and_status_2(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert expected in printed.err
    assert printed.err.startswith(f"purgatory {arguments[0]}: ")
    assert printed.err.count("\n") == 1
