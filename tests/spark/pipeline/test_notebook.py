"""The notebook in docs runs from its first cell to its last, and prints its documented output."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    # A warning of the kernel's: it listens on loopback alone.
    pytest.mark.filterwarnings("default"),
]

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "docs" / "finding.ipynb"


def _shown(notebook: nbformat.NotebookNode) -> list[str]:
    """The output of each cell of code."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert {output.output_type for cell in cells for output in cell.outputs} <= {"stream"}
    return ["".join(output.text for output in cell.outputs) for cell in cells]


def test_notebook_prints_its_documented_output(tmp_path: Path) -> None:
    notebook = nbformat.reads(NOTEBOOK.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    wanted = _shown(notebook)
    assert "58" in "".join(wanted)
    client = NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}})
    with patch.dict(os.environ, {"PYTHONPATH": str(ROOT)}):
        client.execute()
    assert _shown(notebook) == wanted
