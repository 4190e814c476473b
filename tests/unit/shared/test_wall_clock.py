"""The wall clock, which jumps, is read for times to show and to store, never for a duration.

Each place that reads it stands in a table, with the reason. Its readings are neither compared
nor subtracted.
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
MAY_READ = re.compile(r"\.time\(|time_ns|\.now\(|utcnow|today|gmtime|localtime|ctime")
CLOCKS = re.compile(r"CLOCK_(REALTIME|TAI)|gettimeofday|time\(NULL\)|GetSystemClock|TIME_UTC")
SCRIPT_CLOCKS = re.compile(r"\bDate\.now\(|new Date\(\)|\bnow\(\)::|clock_timestamp\(")

TIMESTAMPS = {
    "purgatory/cdc/apply/audit_log.py": "the audit's times of reads, effects and commits",
    "purgatory/cdc/capture/connector.py": "Maxwell's `ts` of a record",
    "purgatory/cdc/capture/snapshot.py": "Maxwell's `ts` of a record",
    "purgatory/cli/cluster_command.py": "the name of a run",
    "purgatory/cluster/broker_services.py": "Kafka's wall clock: times of records, and their age",
    "purgatory/cluster/records.py": "Kafka's time of a record",
    "purgatory/cluster/trace.py": "the name of a run",
    "purgatory/cluster/traced_brokers.py": "the origin of a trace, for the times of records",
    "purgatory/core/recent_errors.py": "the time of an error, to show",
    "purgatory/debug/description.py": "the time of a page",
    "purgatory/metrics/families.py": "the heartbeat as a Unix time: a monotonic age before now",
    "purgatory/shared/relay.py": "since when a relay has its state, to show",
    "purgatory/stream/publisher.py": "the time at which a run started",
    "purgatory/stream/windowed_waits.py": "a bound of what records' times can be",
    "purgatory/virtual/determinism.py": "Kafka's time of a record",
}
"""Files that read the wall clock, and what for."""

ORIGINS = {
    ("purgatory/cdc/apply/audit_log.py", "log_effects"),  # numbers effects, one in a microsecond
    ("purgatory/cluster/traced_brokers.py", "__init__"),  # a monotonic age before now
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


def is_reading(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether an expression calls the wall clock, however its module is named."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return isinstance(node, ast.Call) and ast.unparse(node.func) in {"time_ns", "utcnow"}
    return ".".join(ast.unparse(node.func).split(".")[-2:]) in READINGS


def arithmetic(node: ast.AST) -> Iterator[ast.AST]:
    """Yield an expression, and those from which it is computed."""
    yield node
    inner: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        inner = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        inner = [node.operand]
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"int", "round", "max", "min"}:
        inner = node.args
    for each in inner:
        yield from arithmetic(each)


def readers(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Yield the function, line, and whether a duration is made of it, of each reading."""
    text = path.read_text()
    if not MAY_READ.search(text):
        return  # most files, in a tenth of the time
    tree = ast.parse(text)
    functions = [
        node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    for scope in (*functions, tree):
        name = getattr(scope, "name", "")
        found = [node for node in ast.walk(scope) if is_reading(node)]
        if not found:
            continue
        names = {
            ast.unparse(target)
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and any(map(is_reading, arithmetic(node.value)))
            for target in node.targets
        }

        def is_of_clock(node: ast.AST, names: set[str] = names) -> bool:
            parts = list(arithmetic(node))
            return any(map(is_reading, parts)) or any(
                isinstance(part, (ast.Name, ast.Attribute)) and ast.unparse(part) in names
                for part in parts
            )

        is_duration = any(
            (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, ast.Sub)
                and (is_of_clock(node.left) or is_of_clock(node.right))
            )
            or (
                isinstance(node, ast.Compare)
                and isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
                and any(map(is_of_clock, (node.left, *node.comparators)))
            )
            for node in ast.walk(scope)
        )
        yield name, found[0].lineno, is_duration


def test_wall_clock_is_read_for_timestamps_alone() -> None:
    found = {name_of(path): list(readers(path)) for path in sources(".py")}
    virtual = {"purgatory/virtual/clocks.py"}  # replaces the clocks
    files = {name for name, readings in found.items() if readings} - virtual
    assert files - TIMESTAMPS.keys() == set(), "use time.monotonic, or say here what it is for"
    assert TIMESTAMPS.keys() - files == set(), "these don't read it any more"
    durations = {
        (name, function)
        for name in files
        for function, _, is_duration in found[name]
        if is_duration and function
    }
    assert durations == ORIGINS


def test_native_code_and_scripts_read_no_wall_clock() -> None:
    native = sources(".pyx", ".pxd", ".pxi", ".c", ".h")
    assert native
    scripts = sources(".js")
    assert scripts
    for path in native:
        assert not CLOCKS.search(path.read_text()), name_of(path)
    for path in scripts:
        assert not SCRIPT_CLOCKS.search(path.read_text()), name_of(path)


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("import time\ndef f():\n    a = time.time()\n    return time.monotonic() - a\n", True),
        ("def f(self):\n    self.a = time.time_ns()\n    return self.a > 5\n", True),
        ("def f():\n    return datetime.now(UTC) - start\n", True),
        ("def f():\n    return {'at': time.time()}\n", False),
    ],
)
def test_durations_by_the_wall_clock_are_found(source: str, is_found: bool, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert [is_duration for name, _, is_duration in readers(path) if name] == [is_found]
