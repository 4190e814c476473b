"""The steps of the model, and the map in ``map.md`` from each to its line of code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
_MODEL = Path(__file__).parent
MAP = _MODEL / "map.md"


class Mapped(NamedTuple):
    """The place of a step in the code."""

    path: Path
    function: str
    """With its class."""
    line: str


def model_text() -> str:
    """Return all of the model."""
    return "\n".join(path.read_text() for path in sorted(_MODEL.glob("*.pml")))


def declared_steps() -> list[str]:
    """Return the names that ``state.pml`` declares."""
    text = (_MODEL / "state.pml").read_text()
    [block] = re.findall(r"^mtype = \{(.*?)\};", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"\w+", re.sub(r"/\*.*?\*/", "", block, flags=re.DOTALL))


def used_steps() -> set[str]:
    """Return the names of the steps that are taken."""
    return set(re.findall(r"\bAT\((\w+)\)", model_text())) - {"step"}


def breaks() -> set[str]:
    """Return the macros that break a rule."""
    return set(re.findall(r"\bBREAK_\w+", model_text())) - {"BREAK_"}


def mapped_steps() -> dict[str, Mapped]:
    """Return what the map has for each step, but for users' own."""
    rows = re.findall(
        r"^\| `(\w+)` \| `([\w/.]+)::([\w.]+)` \| `(.+)` \|$", MAP.read_text(), re.MULTILINE
    )
    return {step: Mapped(ROOT / path, function, line) for step, path, function, line in rows}


def steps_of_users() -> list[str]:
    """Return the steps that are the user's own code."""
    return re.findall(r"^\| `(\w+)` \| \(none\) \|", MAP.read_text(), re.MULTILINE)


def described_breaks() -> dict[str, str]:
    """Return the broken variants of the document's table, with what finds each."""
    return dict(re.findall(r"^\| `(BREAK_\w+)` \| .+ \| (.+) \|$", MAP.read_text(), re.MULTILINE))


@cache
def lines_of(path: Path, function: str) -> list[str]:
    """Return the lines of a function or method, without their indent; empty if it is not there."""
    text = path.read_text()
    body: list[ast.stmt] = ast.parse(text).body
    found: ast.stmt | None = None
    for name in function.split("."):
        defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        matching = [node for node in body if isinstance(node, defined) and node.name == name]
        if not matching:
            return []
        found, body = matching[0], matching[0].body
    assert found is not None
    return [line.strip() for line in text.splitlines()[found.lineno - 1 : found.end_lineno]]
