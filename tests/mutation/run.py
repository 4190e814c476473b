"""Changes one thing of a module at a time, and says which changes no test notices.

    python -m tests.mutation.run purgatory/core/watchers.py --sample 30 --jobs 2 -- tests/unit/core

Arguments behind ``--`` are pytest's. First all tests are run once, to see which lines each of
them runs; ``--map`` keeps that for the next time. Then each mutant is tested in a copy of the
project, by the quickest tests that run its lines, until the first fails or ``--timeout`` is over.
Printed are the mutants that lived, and at the end how many of how many did.

A comparison is turned round or made strict, a number moved by one, a condition negated, ``and``
and ``or`` exchanged, a truth value too, a statement left out, ``break`` and ``continue`` exchanged.
A table of numbers is left as it is.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
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
    tables = {
        element
        for node in ast.walk(tree)
        if isinstance(node, ast.Tuple)
        for element in node.elts
        if isinstance(element, ast.Constant)
    }
    found = [mutant for node in ast.walk(tree) if node not in tables for mutant in _changes(node)]
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


class Forks:
    """A copy of the project, and a process that runs its tests (see ``tests.mutation.forks``)."""

    def __init__(self, copy: Path) -> None:
        self.copy = copy
        command = (sys.executable, "-m", "tests.mutation.forks")
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=copy, stdin=pipe, stdout=pipe, text=True)

    def how_it_ends(self, module: str, source: str, tests: Sequence[str], timeout_s: float) -> str:
        """Return what tests come to with ``source`` in place of the module's own."""
        path, process = self.copy / module, self._process
        original = path.read_text(encoding="utf-8") if path.exists() else ""
        assert process.stdin is not None
        assert process.stdout is not None
        path.write_text(source, encoding="utf-8")
        try:
            print(json.dumps([tests, timeout_s]), file=process.stdin, flush=True)
            return process.stdout.readline().strip()
        finally:
            path.write_text(original, encoding="utf-8")

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def make_copy(folder: Path) -> Path:
    """Copy what tests need of the project into a folder: what is compiled can't be changed."""
    for part in ("timer", "purgatory", "tests", "docs"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.so"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def map_tests(copy: Path, tests: Sequence[str], kept: Path | None = None) -> WhoRuns:
    """Run all tests once, to see which lines each of them runs, unless ``kept`` tells."""
    path = kept or copy / "who_runs.json"
    if not path.exists():
        command = [*PYTEST, "-p", "tests.mutation.who_runs", *tests]
        environment = {**os.environ, "WHO_RUNS": str(path.absolute())}
        subprocess.run(command, cwd=copy, check=False, env=environment)
    if not path.exists():
        sys.exit("the tests broke off without a mutant")
    return read_map(path)


class Work(NamedTuple):
    """Mutants to be tested, by how many at a time, and against what."""

    forks: queue.SimpleQueue[Forks]
    map: WhoRuns
    all_tests: Sequence[str]
    options: argparse.Namespace

    def how_it_ends(self, task: tuple[str, Mutant]) -> str:
        """Return what the tests of a mutant of a module come to."""
        module, mutant = task
        node, original = mutant.node, (ROOT / module).read_text(encoding="utf-8")
        last = node.end_lineno or node.lineno
        tests = self.map.of_lines(module, node.lineno, last, self.options.most) or self.all_tests
        forks = self.forks.get()
        try:
            source = mutant.source(original)
            return forks.how_it_ends(module, source, tests, self.options.timeout)
        finally:
            self.forks.put(forks)


def main() -> None:
    """Test the mutants of the modules that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--sample", type=int, help="so many of each module; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each")
    parser.add_argument("--most", type=float, default=20, help="seconds of tests for each")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    parser.add_argument("--map", type=Path, help="which test runs which line: kept in this file")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, tests = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    tasks: list[tuple[str, Mutant]] = []
    for module in options.modules:
        mutants = mutants_of((ROOT / module).read_text(encoding="utf-8"))
        if options.sample is not None and options.sample < len(mutants):
            mutants = random.Random(options.seed).sample(mutants, options.sample)
        tasks += [(module, mutant) for mutant in mutants]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        forks: queue.SimpleQueue[Forks] = queue.SimpleQueue()
        copies = [make_copy(Path(folder, str(number))) for number in range(options.jobs)]
        work = Work(forks, map_tests(copies[0], tests, options.map), tests, options)
        all_forks = [Forks(copy) for copy in copies]
        first = options.modules[0]
        source = (ROOT / first).read_text(encoding="utf-8")
        if all_forks[0].how_it_ends(first, source, tests, options.timeout) != "passed":
            sys.exit("the tests fail without a mutant, or take longer than --timeout")
        for one in all_forks:
            forks.put(one)
        ends: Counter[str] = Counter()
        ended = zip(tasks, pool.map(work.how_it_ends, tasks), strict=True)
        for number, ((module, mutant), how) in enumerate(ended, 1):
            ends[how] += 1
            if how == "passed":
                print(f"{module}, {mutant}", flush=True)
            print(f"\r{ends['passed']} of {number} lived", end="", file=sys.stderr, flush=True)
        for one in all_forks:
            one.close()
    print(f"{ends['passed']} of {len(tasks)} mutants lived; {ends['timeout']} came to no end")


if __name__ == "__main__":
    main()
