"""Changes one thing of a module at a time, and says which changes no test notices.

    python -m tests.mutation.run purgatory/core/watchers.py --sample 30 --jobs 2 -- tests/core

What follows ``--`` are pytest's arguments. First all tests are run once, to see which lines each of
them runs. Then each mutant is tested in a copy of the project, by the quickest tests that run its
lines, until the first fails or ``--timeout`` is over. Printed are the mutants that lived, and at
the end how many of how many did.

A comparison is turned round or made strict, a number moved by one, a condition negated, ``and``
and ``or`` exchanged, a truth value too, a statement left out, ``break`` and ``continue`` exchanged.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutation.who_runs import WhoRuns, read_map

ROOT = Path(__file__).parents[2]

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")

COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


class Mutant(NamedTuple):
    """A piece of source, and what stands there instead."""

    node: ast.expr | ast.stmt
    instead: str

    def source(self, source: str) -> str:
        """Return the source of the whole module, changed."""
        lines = source.encode().splitlines(keepends=True)
        node = self.node
        assert node.end_lineno is not None
        before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
        after = lines[node.end_lineno - 1][node.end_col_offset :]
        rest = b"".join(lines[node.end_lineno :])
        return (before + self.instead.encode() + after + rest).decode()

    def __str__(self) -> str:
        was = " ".join(ast.unparse(self.node).split())
        return f"line {self.node.lineno}: {was[:70]!r} -> {self.instead[:70]!r}"


def mutants_of(source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of the source."""
    tree = ast.parse(source)
    found = [mutant for node in ast.walk(tree) for mutant in _changes(node)]
    return sorted(found, key=lambda mutant: (mutant.node.lineno, mutant.node.col_offset))


def _changes(node: ast.AST) -> Iterator[Mutant]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            changed = f"({ast.unparse(left)} {COMPARED[type(operator)]} {ast.unparse(right)})"
            yield Mutant(node, changed)
        case ast.BoolOp(op=operator, values=values):
            word = " or " if isinstance(operator, ast.And) else " and "
            yield Mutant(node, f"({word.join(f'({ast.unparse(value)})' for value in values)})")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield Mutant(node, f"bool({ast.unparse(operand)})")
        case ast.Constant(value=bool() as value):
            yield Mutant(node, repr(not value))
        case ast.Constant(value=int() as value):
            yield Mutant(node, repr(value + 1))
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Compare):
            yield Mutant(test, f"(not ({ast.unparse(test)}))")
        case ast.Assign() | ast.AugAssign() | ast.Delete() | ast.Raise():
            yield Mutant(node, "pass")
        case ast.Expr(value=ast.Call()):
            yield Mutant(node, "pass")
        case ast.Break():
            yield Mutant(node, "continue")
        case ast.Continue():
            yield Mutant(node, "break")


def lives(copy: Path, module: str, source: str, tests: Sequence[str], timeout_s: float) -> bool:
    """Whether all tests pass with ``source`` in place of the module's own."""
    (copy / module).write_text(source, encoding="utf-8")
    command = [*PYTEST, "-x", *tests]
    try:
        ended = subprocess.run(
            command, cwd=copy, capture_output=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


def make_copy(folder: Path) -> Path:
    """Copy what tests need of the project into a folder."""
    for part in ("timer", "purgatory", "tests", "docs"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def map_tests(copy: Path, tests: Sequence[str]) -> WhoRuns:
    """Run all tests once, to see which lines each of them runs."""
    path = copy / "who_runs.json"
    command = [*PYTEST, "-p", "tests.mutation.who_runs", *tests]
    environment = {**os.environ, "WHO_RUNS": str(path)}
    subprocess.run(command, cwd=copy, check=False, env=environment)
    if not path.exists():
        sys.exit("the tests broke off without a mutant")
    return read_map(path)


class Work(NamedTuple):
    """Mutants to be tested, by how many at a time, and against what."""

    copies: queue.SimpleQueue[Path]
    map: WhoRuns
    all_tests: Sequence[str]
    options: argparse.Namespace

    def lives(self, task: tuple[str, Mutant]) -> bool:
        """Whether a mutant of a module lives."""
        module, mutant = task
        node, original = mutant.node, (ROOT / module).read_text(encoding="utf-8")
        last = node.end_lineno or node.lineno
        tests = self.map.of_lines(module, node.lineno, last, self.options.most)
        copy = self.copies.get()
        try:
            source = mutant.source(original)
            return lives(copy, module, source, tests or self.all_tests, self.options.timeout)
        finally:
            (copy / module).write_text(original, encoding="utf-8")
            self.copies.put(copy)


def main() -> None:
    """Test the mutants of the modules that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--sample", type=int, help="so many of each module; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each")
    parser.add_argument("--most", type=float, default=20, help="seconds of tests for each")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, tests = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    tasks: list[tuple[str, Mutant]] = []
    for module in options.modules:
        mutants = mutants_of((ROOT / module).read_text(encoding="utf-8"))
        if options.sample is not None and options.sample < len(mutants):
            mutants = random.Random(options.seed).sample(mutants, options.sample)
        tasks += [(module, mutant) for mutant in mutants]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(options.jobs):
            copies.put(made := make_copy(Path(folder, str(number))))
        work = Work(copies, map_tests(made, tests), tests, options)
        lived = 0
        for number, ((module, mutant), lived_on) in enumerate(
            zip(tasks, pool.map(work.lives, tasks), strict=True), 1
        ):
            if lived_on:
                lived += 1
                print(f"{module}, {mutant}", flush=True)
            print(f"\r{lived} of {number} lived", end="", file=sys.stderr, flush=True)
    print(f"{lived} of {len(tasks)} mutants lived")


if __name__ == "__main__":
    main()
