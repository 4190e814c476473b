"""The contents of the documents: their Python, their links, and the tests that they name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]


def python_of(document: Path) -> str:
    """Return the Python blocks of ``document`` as one program; empty if it has none."""
    blocks = re.findall(r"^```python\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
    return "\n".join(blocks)


def imported_by(document: Path) -> set[str]:
    """Return the full names that the Python of ``document`` takes from this project."""
    return {
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(python_of(document)))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("purgatory", "timer"))
        for alias in node.names
    }


def run_python_of(document: Path) -> str:
    """Run the Python blocks of ``document`` as one program, and return what it printed."""
    program = python_of(document)
    assert program, f"{document.name} has no block of Python"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def links_of(document: Path) -> list[str]:
    """Return the targets of ``document``'s links in the repository."""
    return re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())


def named_tests_of(document: Path) -> list[tuple[Path, str]]:
    """Return file and name of each test: in a table, a short one belongs to the file in its head,
    as in ``| test, in `tests/unit/kafka/` |``."""
    found: list[tuple[Path, str]] = []
    folder = ""
    for line in document.read_text().splitlines():
        head = re.search(r"\| test, in `(tests/[\w/.]+)` \|", line)
        if head is not None:
            folder = head[1]
            continue
        for path, name in re.findall(r"`([\w/.]*)::(\w+)`", line):
            full = path if path.startswith("tests/") else f"{folder}{path}"
            found.append((ROOT / full, name))
    return found


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names that a module defines: functions, classes, and what is assigned."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(names)


def columns_in(document: Path, table: str) -> list[tuple[str, str]]:
    """Return name and type of each column of ``table`` in order; a row may have several."""
    section = re.split(rf"^##+ Table `{table}`$", document.read_text(), flags=re.MULTILINE)[1]
    rows = re.findall(r"^\| (`[^|]*`) \| (\w+) \|", section.partition("\n##")[0], re.MULTILINE)
    return [(name, kind) for names, kind in rows for name in re.findall(r"`(\w+)`", names)]
