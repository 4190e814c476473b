"""The folders of results, and their contents after a failed analysis."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from purgatory.pipeline.engines.result_folder import check_output, output_folder
from purgatory.pipeline.errors import OutputError
from tests.spark.pipeline.conftest import RandomOperations, WriteTrace


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_new_and_empty_folders_are_accepted(tmp_path: Path) -> None:
    check_output(tmp_path / "new", [], overwrite=False)
    check_output(tmp_path, [], overwrite=False)


def test_results_are_replaced_only_when_asked_to(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("earlier")
    with pytest.raises(OutputError, match="has results already; allow --overwrite"):
        check_output(tmp_path, [], overwrite=False)
    check_output(tmp_path, [], overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_folder_with_other_content_is_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "report.html").touch()
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(OutputError, match=r"holds 'thesis\.tex', which is no result"):
        check_output(tmp_path, [], overwrite)


@pytest.mark.parametrize("out", ["trace", "trace/report", "."])
def test_results_and_traces_stay_apart(tmp_path: Path, out: str) -> None:
    (tmp_path / "trace").mkdir()
    with pytest.raises(OutputError, match="overlap; name another folder"):
        check_output(tmp_path / out, [tmp_path / "trace"], overwrite=True)


def test_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(OutputError, match="is a file"):
        check_output(tmp_path / "out", [], overwrite=True)


def test_too_long_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="xxx: can't be read: File name too long"):
        check_output(tmp_path / ("x" * 300), [], overwrite=False)


def test_results_are_visible_only_when_complete(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with output_folder(out) as folder:
        (folder / "report.html").write_text("new")
        assert not out.exists()
    assert (out / "report.html").read_text() == "new"
    assert _names(out.parent) == {"out"}


def test_failure_keeps_the_earlier_results(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.html").write_text("earlier")
    with pytest.raises(ZeroDivisionError), output_folder(out) as folder:
        (folder / "report.html").write_text(str(1 / 0))
    assert (out / "report.html").read_text() == "earlier"
    assert _names(tmp_path) == {"out"}
    with output_folder(out) as folder:
        (folder / "waits").mkdir()
    assert _names(out) == {"waits"}
    assert _names(tmp_path) == {"out"}


def test_uncreatable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(OutputError, match="file: File exists"),
        output_folder(tmp_path / "file" / "out"),
    ):
        pytest.fail("there is no folder to write to")


def _run_in(out: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "purgatory", *command, "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture(name="small_disk")
def fixture_small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("a file system can't be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("engine", [pytest.param("spark", marks=pytest.mark.spark), "duckdb"])
def test_full_or_read_only_disk_is_one_line_without_results(
    engine: str,
    write_trace: WriteTrace,
    random_operations: RandomOperations,
    small_disk: Path,
    tmp_path: Path,
) -> None:
    trace = write_trace(tmp_path / "trace", random_operations(3, 4_000), duration_ms=1_000)
    command = ("waits", str(trace), "--engine", engine, "--no-progress")
    ran = _run_in(small_disk / "out", *command)
    assert ran.returncode == 2, ran.stderr
    assert "No space left on device" in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr
    assert list(small_disk.iterdir()) == []
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    ran = _run_in(small_disk / "out", *command)
    assert ran.returncode == 2, ran.stderr
    assert "Read-only file system" in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr
