"""Where results may go, and what is left when an analysis fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from purgatory.pipeline.engines.result_folder import check_output, output_folder
from purgatory.pipeline.errors import OutputError


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_new_folder_and_an_empty_one_are_taken(tmp_path: Path) -> None:
    check_output(tmp_path / "new", [], overwrite=False)
    check_output(tmp_path, [], overwrite=False)


def test_results_are_replaced_only_when_asked_to(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("earlier")
    with pytest.raises(OutputError, match="has results already; allow --overwrite"):
        check_output(tmp_path, [], overwrite=False)
    check_output(tmp_path, [], overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_anything_else_is_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "report.html").touch()
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(OutputError, match=r"holds 'thesis\.tex', which is no result"):
        check_output(tmp_path, [], overwrite)


@pytest.mark.parametrize("out", ["trace", "trace/report", "."])
def test_results_and_traces_stay_apart(tmp_path: Path, out: str) -> None:
    (tmp_path / "trace").mkdir()
    with pytest.raises(OutputError, match="overlap; name another folder"):
        check_output(tmp_path / out, [tmp_path / "trace"], overwrite=True)


def test_a_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(OutputError, match="is a file"):
        check_output(tmp_path / "out", [], overwrite=True)


def test_results_appear_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with output_folder(out) as folder:
        (folder / "report.html").write_text("new")
        assert not out.exists()
    assert (out / "report.html").read_text() == "new"
    assert _names(out.parent) == {"out"}


def test_a_failure_leaves_the_earlier_results(tmp_path: Path) -> None:
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


def test_a_place_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(OutputError, match="file: File exists"),
        output_folder(tmp_path / "file" / "out"),
    ):
        pytest.fail("there is no folder to write to")
