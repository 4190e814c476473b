"""The notebook in docs runs from its first cell to its last, and prints its documented output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat
import pytest
from nbclient import NotebookClient
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "docs" / "finding.ipynb"


@pytest.fixture(name="notebook")
def fixture_notebook() -> nbformat.NotebookNode:
    text = NOTEBOOK.read_text(encoding="utf-8")
    notebook: nbformat.NotebookNode = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
    return notebook


def _cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _shown(notebook: nbformat.NotebookNode) -> list[str]:
    """The output of each cell of code."""
    cells = _cells(notebook)
    assert {output.output_type for cell in cells for output in cell.outputs} <= {"stream"}
    return ["".join(output.text for output in cell.outputs) for cell in cells]


def test_notebook_prints_its_documented_output(
    notebook: nbformat.NotebookNode, spark: SparkSession
) -> None:
    @contextmanager
    def shared(master: str) -> Iterator[SparkSession]:
        assert master == "local[2]"
        yield spark

    names: dict[str, Any] = {}
    found = []
    with (
        patch.dict(os.environ, {"PYTHONPATH": str(ROOT)}),
        patch("purgatory.pipeline.engines.spark.session.spark_session", shared),
    ):
        for cell in _cells(notebook):
            with redirect_stdout(StringIO()) as printed:
                exec(compile(cell.source, NOTEBOOK.name, "exec"), names)
            found.append(printed.getvalue())
    assert found == _shown(notebook)
    assert "58" in "".join(found)


@pytest.mark.exhaustive
# A warning of the kernel's: it listens on loopback alone.
@pytest.mark.filterwarnings("default")
def test_notebook_runs_in_a_kernel(notebook: nbformat.NotebookNode, tmp_path: Path) -> None:
    wanted = _shown(notebook)
    client = NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}})
    with patch.dict(os.environ, {"PYTHONPATH": str(ROOT)}):
        client.execute()
    assert _shown(notebook) == wanted
