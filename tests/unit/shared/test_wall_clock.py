"""The wall clock, which jumps, is read for times to show and to store, never for a duration.

Each file that reads it, or names it as what another is to read, stands in a table, with the reason.
So do those that read a file's times. Readings are neither compared nor subtracted, whether in the
function that took them or, of an attribute, in any other of the module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parents[3]
PRODUCT = ("purgatory", "timer", "docs")
READINGS = {
    *("time.time", "time.time_ns", "time.gmtime", "time.localtime", "time.ctime"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
}
FILE_TIMES = re.compile(r"(st_[mca]|st_birth|get[mca])time(_ns)?")
MAY_READ = re.compile(
    rf"^\s*(import|from)\b.*\b(time|datetime|date)\b|{'|'.join(map(re.escape, sorted(READINGS)))}"
    rf"|{FILE_TIMES.pattern}",
    re.MULTILINE,
)
"""The marks of a module that reads the clock: an import of any name, or the reading itself."""
CLOCKS = re.compile(r"CLOCK_(REALTIME|TAI)|gettimeofday|time\(NULL\)|GetSystemClock|TIME_UTC")
SCRIPT_CLOCKS = re.compile(r"\bDate\.now\(|new Date\(\)")
SQL_CLOCKS = re.compile(
    r"\b(now|(clock|statement|transaction|unix)_timestamp|currentTimeMillis|sysdate)\b\W{0,2}\("
    r"|^[^-#]*\b(current_(timestamp|date)|localtimestamp)\b|'currentTimeMillis'",
    re.IGNORECASE | re.MULTILINE,
)

TIMESTAMPS = {
    "purgatory/cdc/apply/audit_log.py": "the audit's times of reads, effects and commits",
    "purgatory/cdc/capture/connector.py": "Maxwell's `ts` of a record",
    "purgatory/cdc/capture/snapshot.py": "Maxwell's `ts` of a record",
    "purgatory/cli/cluster_command.py": "the name of a run",
    "purgatory/cluster/broker_services.py": "Kafka's wall clock: times of records, and their age",
    "purgatory/cluster/records.py": "Kafka's time of a record",
    "purgatory/cluster/steering/seen_requests.py": "when a request came and was answered, to show",
    "purgatory/cluster/trace.py": "the name of a run",
    "purgatory/cluster/traced_brokers.py": "the origin of a trace, for the times of records",
    "purgatory/core/recent_errors.py": "the time of an error, to show",
    "purgatory/debug/description.py": "the time of a page",
    "purgatory/kafka/faults/active_faults.py": "when a fault began and ended, to show",
    "purgatory/metrics/families.py": "the heartbeat as a Unix time: a monotonic age before now",
    "purgatory/shared/relay.py": "since when a relay has its state, to show",
    "purgatory/shared/unix_relay.py": "whether a folder has changed: its time is another one",
    "purgatory/stream/publisher.py": "the time at which a run started",
    "purgatory/stream/windowed_waits.py": "a bound of what records' times can be",
    "purgatory/virtual/determinism.py": "Kafka's time of a record",
}
"""Files that read the wall clock, and what for."""

ORIGINS = {
    ("purgatory/cdc/apply/audit_log.py", "log_effects"),  # numbers effects, one in a microsecond
    ("purgatory/cluster/traced_brokers.py", "us_of_wall_s"),  # Kafka's time of a transaction
    ("purgatory/kafka/faults/active_faults.py", "as_dict"),  # a monotonic age before now
    ("purgatory/metrics/families.py", "_add_reaper"),  # likewise
}
"""Functions that take a number from a reading, which is no reading itself."""


def sources(*suffixes: str) -> list[Path]:
    found = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*")]
    return sorted(
        path
        for path in found
        if path.suffix in suffixes
        and not path.name.endswith(".min.js")  # another project's
        and not {"build", "node_modules"} & {*path.parts}
    )


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


class Aliases(ast.NodeTransformer):
    """Gives what a module imports of time its own name again: ``time.time`` for ``time``."""

    def __init__(self, tree: ast.Module) -> None:
        self.names: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found = {one.asname or one.name: one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module == "time":
                found = {one.asname or one.name: f"time.{one.name}" for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module == "datetime":
                found = {one.asname or one.name: one.name for one in node.names}
            else:
                continue
            for alias, name in found.items():
                if alias != name:
                    self.names[alias] = ast.parse(name, mode="eval").body

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.names.get(node.id, node)


def is_reading(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Whether an expression names a function of the wall clock, or a time of a file."""
    if not isinstance(node, ast.Attribute):
        return False
    of = getattr(node.value, "attr", None) or getattr(node.value, "id", "")
    return f"{of}.{node.attr}" in READINGS or FILE_TIMES.fullmatch(node.attr) is not None


def arithmetic(node: ast.AST) -> Iterator[ast.AST]:
    """Yield an expression, and those from which it is computed."""
    yield node
    inner: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        inner = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        inner = [node.operand]
    elif isinstance(node, ast.Attribute):
        inner = [node.value]
    elif isinstance(node, ast.Call):
        inner = [node.func]
        if ast.unparse(node.func) in {"int", "round", "max", "min"}:
            inner = node.args
    for each in inner:
        yield from arithmetic(each)


def stored(scope: ast.AST) -> set[str]:
    """Return the names and attributes that a scope gives a reading, or what is computed of it."""
    return {
        ast.unparse(target)
        for node in ast.walk(scope)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        if any(map(is_reading, arithmetic(node.value)))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }


def makes_duration(scope: ast.AST, names: set[str]) -> bool:
    """Whether a reading, or what has one of the names, is subtracted or compared."""

    def is_of_clock(node: ast.AST) -> bool:
        return any(
            is_reading(part)
            or (isinstance(part, (ast.Name, ast.Attribute)) and ast.unparse(part) in names)
            for part in arithmetic(node)
        )

    for node in ast.walk(scope):
        sides: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            sides = [node.left, node.right]
        elif isinstance(node, ast.Compare) and isinstance(
            node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
        ):
            sides = [node.left, *node.comparators]
        if any(map(is_of_clock, sides)):
            return True
    return False


def readers(path: Path) -> dict[str, bool]:
    """Return the functions that read the clock, or use a reading, and which make a duration."""
    text = path.read_text()
    if not MAY_READ.search(text):
        return {}  # most files, in a tenth of the time
    tree = ast.parse(text)
    tree = ast.fix_missing_locations(Aliases(tree).visit(tree))
    if not any(map(is_reading, ast.walk(tree))):
        return {}
    attributes = {name for name in stored(tree) if "." in name}
    functions = [
        node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    found = {scope.name: makes_duration(scope, attributes | stored(scope)) for scope in functions}
    return found or {"the module": makes_duration(tree, stored(tree))}


def test_wall_clock_is_read_for_timestamps_alone() -> None:
    found = {name_of(path): readers(path) for path in sources(".py")}
    virtual = {"purgatory/virtual/clocks.py"}  # replaces the clocks
    files = {name for name, readings in found.items() if readings} - virtual
    assert files - TIMESTAMPS.keys() == set(), "use time.monotonic, or say here what it is for"
    assert TIMESTAMPS.keys() - files == set(), "these don't read it any more"
    durations = {
        (name, function)
        for name in files
        for function, is_duration in found[name].items()
        if is_duration
    }
    assert durations == ORIGINS


def test_native_code_and_scripts_read_no_wall_clock() -> None:
    native = sources(".pyx", ".pxd", ".pxi", ".c", ".h")
    assert native
    scripts = sources(".js", ".html")
    assert scripts
    queries = sources(".sql")
    assert queries
    for path in native:
        assert not CLOCKS.search(path.read_text()), name_of(path)
    for path in scripts:
        assert not SCRIPT_CLOCKS.search(path.read_text()), name_of(path)
    assert {name_of(path) for path in queries if SQL_CLOCKS.search(path.read_text())} == {
        "purgatory/stream/operations.sql"  # a bound of what records' times can be
    }


@pytest.mark.parametrize(
    ("source", "durations"),
    [
        ("import time\ndef f():\n    a = time.time()\n    return time.monotonic() - a\n", ["f"]),
        ("import time\ndef f(self):\n    self.a = time.time_ns()\n    return self.a > 5\n", ["f"]),
        ("def f():\n    return datetime.now(UTC) - start\n", ["f"]),
        ("def f():\n    return {'at': time.time()}\n", []),
        ("from time import time\ndef f(a):\n    return time() - a\n", ["f"]),
        ("import time as t\ndef f(a):\n    return t.time() - a\n", ["f"]),
        (
            "from datetime import datetime as D\ndef f(a):\n    return D.now() < a\n",
            ["f"],
        ),
        (
            "def f(self):\n    self.n = time.time\ndef g(self, a):\n    return self.n() - a\n",
            ["g"],
        ),
        ("def f(self):\n    self.a = time.time()\ndef g(self, a):\n    return a - self.a\n", ["g"]),
        ("def f(path, a):\n    return path.stat().st_mtime_ns < a\n", ["f"]),
        ("def f(a, b):\n    return time.time(), a - b\n", []),
    ],
)
def test_durations_by_the_wall_clock_are_found(
    source: str, durations: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    found = readers(path)
    assert found, "it reads the clock"
    assert [name for name, is_duration in found.items() if is_duration] == durations
