"""docs/timer.md: its Python runs, and each test that it names exists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "timer.md").read_text()
NAMED_TESTS = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", DOCUMENT)


def names_defined_in(path: Path) -> set[str]:
    """Return the names that a module defines at its top: functions, classes, assignments."""
    names: set[str] = set()
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign):
            names |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return names


def test_the_python_in_the_document_runs_from_top_to_bottom() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 3
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr


def test_each_test_that_the_document_names_exists() -> None:
    assert len(NAMED_TESTS) > 20
    missing = [
        f"{path}::{name}"
        for path, name in NAMED_TESTS
        if not (ROOT / path).is_file() or name not in names_defined_in(ROOT / path)
    ]
    assert missing == []


def test_each_promise_in_the_table_names_a_test() -> None:
    table = DOCUMENT.partition("| promise | test |")[2].partition("\n\n")[0]
    rows = [line for line in table.splitlines()[2:] if line]
    assert len(rows) > 10
    assert [row for row in rows if "::test_" not in row] == []
