"""The documents: each test that one of them names exists, and the purgatory's Python runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GUARANTEES = ROOT / "docs" / "purgatory.md"
TEST_NAME = re.compile(r"\b(tests/[\w/]+\.py)::(\w+)")


def names_in(path: Path) -> set[str]:
    """Return the names that a module defines: functions, classes, and what is assigned."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_each_test_that_a_document_names_exists(document: Path) -> None:
    missing = [
        f"{path}::{name}"
        for path, name in TEST_NAME.findall(document.read_text())
        if not (ROOT / path).is_file() or name not in names_in(ROOT / path)
    ]
    assert missing == []


def test_each_guarantee_names_its_tests() -> None:
    section = GUARANTEES.read_text().split("\n## Guarantees\n")[1]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 10
    for row in rows:
        assert TEST_NAME.search(row), f"no test is named in: {row}"


def test_the_python_of_the_purgatorys_page_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", GUARANTEES.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
