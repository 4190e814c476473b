"""DuckDB's bounds: too large jobs are refused before they start, and leave no files behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import click
import duckdb
import pytest

from purgatory.cli import job_output
from purgatory.cli.job_commands import VIOLATIONS_FOUND
from purgatory.cli.main import main
from purgatory.cli.options import memory_size
from purgatory.pipeline.engines import result_folder
from purgatory.pipeline.engines.duckdb import connection as row_bound
from purgatory.pipeline.engines.duckdb.connection import duckdb_connection
from purgatory.pipeline.engines.run import run_job
from purgatory.pipeline.engines.trace_audit import audit
from purgatory.pipeline.errors import SessionError
from purgatory.pipeline.ingest import duckdb_reader
from purgatory.pipeline.signals import stop_computation
from tests.benchmarks.large_traces import write_large_trace
from tests.benchmarks.planted_blocks import Shape

_SPILLING = "CREATE TEMP TABLE spilled AS SELECT range AS n, random() AS r FROM range(12000000)"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace that takes some seconds."""
    folder = tmp_path_factory.mktemp("traces") / "large"
    write_large_trace(folder, Shape(60_000, planted=3))
    return folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for all that is temporary."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("bound", ["BYTES_PER_ROW", "MEMORY_PER_ROW"])
def test_too_many_rows_are_refused_with_a_command_for_them(
    bound: str,
    traces: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(row_bound, bound, 10**15)
    out = traces.parent / "with space"
    assert main(["audit", str(traces), "--engine", "duckdb", "--out", str(out)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("purgatory audit: the traces have ")
    assert " rows, and about 0 fit here: " in said
    assert said.endswith(f"Use Spark: purgatory audit {traces} --out '{out}' --engine spark")
    assert not out.exists()
    assert list(temporary.iterdir()) == []
    with pytest.raises(SessionError, match=f"purgatory audit {traces} --engine spark"):
        audit(traces)


@pytest.mark.slow
def test_files_read_in_place_give_the_same_results(
    traces: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = run_job("audit", [traces], engine="duckdb", page=True).rows
    monkeypatch.setattr(duckdb_reader, "LEAST_IN_PLACE", 1)
    assert run_job("audit", [traces], engine="duckdb", page=True).rows == copied
    assert copied["witnesses"]


def test_memory_bounds_the_rows_and_names_the_option(
    traces: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["audit", str(traces), "--engine", "duckdb", "--memory"]
    assert main([*command, "256MiB"]) == VIOLATIONS_FOUND
    assert capsys.readouterr().err == ""
    with duckdb_connection(memory=64 << 20) as connection:
        (limit,) = connection.execute("SELECT current_setting('memory_limit')").fetchone() or ("",)
    assert limit == "64.0 MiB"
    assert main([*command, "1MiB"]) == 2
    assert (
        "'1MiB' is not a size from 256MiB to 1024TiB, such as 800MiB or 2GiB"
        in capsys.readouterr().err
    )
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("800 MiB", 800 << 20),
        ("4g", 4 << 30),
        ("1.5G", 3 << 29),
        ("2GB", 2 * 10**9),
        ("262144k", 256 << 20),
        *((bad, None) for bad in ("", "2", "GiB", "-2GiB", "2PiB", "2GiBs", "255MiB", "nan")),
        *((bad, None) for bad in ("1025TiB", "99999999999999999999TiB", "9" * 400 + "g")),
    ],
)
def test_memory_sizes_are_parsed(text: str, size: int | None) -> None:
    if size is not None:
        assert memory_size(text) == size
        return
    with pytest.raises(click.BadParameter, match="is not a size from 256MiB to 1024TiB"):
        memory_size(text)


def test_job_beyond_its_memory_limit_names_the_option(
    temporary: Path,
) -> None:
    with (
        pytest.raises(
            SessionError, match=r"with 64 MiB of memory .* give it more \(--memory; TMPDIR"
        ),
        duckdb_connection(memory=64 << 20) as connection,
    ):
        # The contents of a list are not spilled to the disk.
        connection.execute("SELECT len(list(range)) FROM range(40000000)").fetchall()
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_spilled_files_are_removed_after_an_error(temporary: Path) -> None:
    with (  # noqa: PT012 - the files are there until the error has left the block
        pytest.raises(SessionError, match="DuckDB could not go on"),
        duckdb_connection(memory=64 << 20) as connection,
    ):
        connection.execute(_SPILLING)
        assert [path for path in temporary.rglob("*") if path.is_file()] != []
        connection.execute("SET max_temp_directory_size = '1MiB'")
        connection.execute(_SPILLING.replace("spilled", "more"))
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("command", "number", "status", "said"),
    [
        ("audit", signal.SIGINT, 130, "purgatory audit: interrupted; nothing was written\n"),
        ("audit", signal.SIGTERM, 143, "purgatory audit: terminated; nothing was written\n"),
        ("analyze", signal.SIGINT, 130, "purgatory analyze: interrupted; nothing was written\n"),
        ("analyze", signal.SIGTERM, 143, "purgatory analyze: terminated; nothing was written\n"),
    ],
)
def test_signal_leaves_no_process_or_file(
    traces: Path, tmp_path: Path, command: str, number: signal.Signals, status: int, said: str
) -> None:
    temporary, results = tmp_path / "temporary", tmp_path / "results"
    temporary.mkdir()
    results.mkdir()
    arguments = [command, str(traces), "--engine", "duckdb", "--out", str(results / "out")]
    with subprocess.Popen(
        [sys.executable, "-m", "purgatory", *arguments],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not all(list(folder.iterdir()) for folder in (temporary, results)):  # it has begun
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        printed, errors = process.communicate(timeout=240)
    assert (process.returncode, printed, errors) == (status, "", said)
    assert list(temporary.iterdir()) == []
    assert list(results.iterdir()) == []


@pytest.mark.usefixtures("interruptible")
def test_dropped_signal_is_delivered_again() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stop_computation():  # noqa: PT012 - it drops one
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            for _ in range(600):
                time.sleep(0.1)
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.usefixtures("interruptible")
def test_query_is_interrupted_like_python() -> None:
    query = (
        "CREATE TEMP TABLE made AS SELECT count(*) AS n FROM range(30000000) one, range(6000) two "
        "WHERE one.range * two.range % 7 = 3"
    )
    with pytest.raises(KeyboardInterrupt), stop_computation(), duckdb.connect() as connection:  # noqa: PT012
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        connection.execute(query)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "status", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
@pytest.mark.parametrize("place", ["result_folder._move", "job_output.print_results"])
def test_message_after_a_signal_names_completed_results(
    slow_follower_trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    status: int,
    said: str,
    place: str,
) -> None:
    module, _, name = place.partition(".")
    owner = {"result_folder": result_folder, "job_output": job_output}[module]
    called = getattr(owner, name)

    def interrupted(*arguments: object, **options: object) -> None:
        signal.raise_signal(number)
        called(*arguments, **options)

    monkeypatch.setattr(owner, name, interrupted)
    command = ["waits", str(slow_follower_trace), "--engine", "duckdb"]
    out = tmp_path / "out"
    assert main([*command, "--out", str(out)]) == status
    assert capsys.readouterr() == ("", f"purgatory waits: {said}; the results are in {out}\n")
    assert sorted(one.name for one in out.iterdir()) == ["slowest", "waits"]
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
    if module == "job_output":
        assert main(command) == status
        assert capsys.readouterr().err == f"purgatory waits: {said}; nothing was written\n"
