"""Puts faults into the native parts, one at a time, and says which of them no test notices.

    python -m tests.mutation.native                     all of ``native_mutants``: half an hour
    python -m tests.mutation.native heap chain          those whose source or fault has such a word

Each is compiled, that module alone, in a copy of the project, whose tests of the timer and of the
core run until the first fails. Those that take longest and find nothing else are left out. It needs
Cython and a C compiler. Printed is how each ended, and at the end which lived.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tests.mutation.native_mutants import MUTANTS, ROOT, NativeMutant
from tests.mutation.run import Forks, make_copy

SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")

NOT_RUN = (
    *("tests/proofs/core/test_interleavings.py", "tests/proofs/core/test_random_interleavings.py"),
    *(
        "tests/proofs/core/test_mutants.py",
        "tests/proofs/core/test_scheduler.py",
        "tests/proofs/core/test_valgrind.py",
    ),
)
"""Of the core in pure Python, or too slow."""

OPTIONS = (
    *("-m", "not exhaustive and not once and not pure", "--hypothesis-seed=1"),
    *(f"--ignore={path}" for path in NOT_RUN),
    "--deselect=tests/unit/timer/test_native.py::test_the_debug_allocators_find_nothing",
)

QUICK_TO_FIND = (
    *("tests/unit/timer/test_system_timer.py", "tests/unit/timer/test_cancelling.py"),
    *("tests/unit/core/test_kafka_cases.py", "tests/unit/core/test_handed_over.py"),
    *("tests/proofs/core/test_thresholds.py", "tests/proofs/core/test_native_interleavings.py"),
)
FOLDERS = ("tests/unit/timer", "tests/proofs/timer", "tests/unit/core", "tests/proofs/core")

TIMEOUT_S = 600.0


def can_build() -> str | None:
    """Return why extension modules can't be built here, or None."""
    if importlib.util.find_spec("Cython") is None:
        return "there is no Cython"
    if shutil.which(_compiler()[0]) is None:
        return "there is no C compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "there is no Python.h"
    return None


def _compiler() -> list[str]:
    return (sysconfig.get_config_var("CC") or "cc").split()


def build(tree: Path, path: str, source: str) -> Path:
    """Compile a source of the native parts, changed, in a copy of them; return the library.

    Raises:
        subprocess.CalledProcessError: it can't be compiled.
    """
    changed, library = Path(tree, path), Path(tree, path).with_suffix(SUFFIX)
    original = changed.read_text(encoding="utf-8")
    changed.write_text(source, encoding="utf-8")
    try:
        _compile(tree, path, library)
    finally:
        changed.write_text(original, encoding="utf-8")
    return library


def _compile(tree: Path, path: str, library: Path) -> None:
    include = f"-I{sysconfig.get_path('include')}"
    made = Path(path).with_suffix(".c")
    cython = [sys.executable, "-m", "cython", "-3", "--output-file", str(made), path]
    # As quickly as can be: what is compiled here runs for seconds.
    shared = [*_compiler(), "-shared", "-fPIC", "-O0", "-fwrapv", "-w", include, str(made)]
    for command in (cython, [*shared, "-o", f"{library}.new"]):
        subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True)
    os.replace(f"{library}.new", library)  # another file: the old one may be in use


def sources() -> list[str]:
    """Return the paths of all that is compiled."""
    folders = ("timer/native", "purgatory/core/native")
    return [
        str(path.relative_to(ROOT)) for folder in folders for path in ROOT.glob(f"{folder}/*.pyx")
    ]


class Mutants:
    """A copy of the project in which faults are compiled and tested."""

    def __init__(self, folder: Path) -> None:
        self._copy = make_copy(folder)
        for path in sources():
            build(self._copy, path, Path(ROOT, path).read_text(encoding="utf-8"))
        self._forks = Forks(self._copy)

    def how_it_ends(self, mutant: NativeMutant) -> str:
        """Return what the tests of a fault come to: "passed", "failed" or "timeout"."""
        rebuilt = sources() if mutant.path.endswith(".pxd") else [mutant.path]
        kept = {path: self._library(path).read_bytes() for path in rebuilt}
        try:
            if mutant.path.endswith(".pxd"):
                self._rebuild_all(mutant)
            else:
                build(self._copy, mutant.path, mutant.source())
            tests = [*OPTIONS, *QUICK_TO_FIND]
            how = self._test(mutant, tests)
            return self._test(mutant, [*OPTIONS, *FOLDERS]) if how == "passed" else how
        finally:
            for path, library in kept.items():
                self._library(path).unlink()
                self._library(path).write_bytes(library)

    def close(self) -> None:
        """End the process that runs the tests."""
        self._forks.close()

    def _library(self, path: str) -> Path:
        return Path(self._copy, path).with_suffix(SUFFIX)

    def _rebuild_all(self, mutant: NativeMutant) -> None:
        header = Path(self._copy, mutant.path)
        original = header.read_text(encoding="utf-8")
        header.write_text(mutant.source(), encoding="utf-8")
        try:
            for path in sources():
                _compile(self._copy, path, self._library(path))
        finally:
            header.write_text(original, encoding="utf-8")

    def _test(self, mutant: NativeMutant, tests: list[str]) -> str:
        return self._forks.how_it_ends(mutant.path, mutant.source(), tests, TIMEOUT_S)


def chosen(words: Iterable[str]) -> list[NativeMutant]:
    """Return the mutants that have one of these words in their source's path or in their fault."""
    wanted = list(words)
    return [
        mutant
        for mutant in MUTANTS
        if not wanted or any(word in f"{mutant.path} {mutant.fault}" for word in wanted)
    ]


def main() -> None:
    """Test the mutants that the command line names, or all."""
    reason = can_build()
    if reason is not None:
        sys.exit(f"the native parts can't be built here: {reason}")
    lived = []
    with tempfile.TemporaryDirectory() as folder:
        mutants = Mutants(Path(folder))
        for mutant in chosen(sys.argv[1:]):
            begin_s = time.monotonic()
            how = mutants.how_it_ends(mutant)
            told = {"passed": "LIVED", "failed": "noticed", "timeout": "came to no end"}[how]
            print(
                f"{told}, {time.monotonic() - begin_s:.0f} s: {mutant.path}: {mutant.fault}",
                flush=True,
            )
            lived += [mutant] if how == "passed" else []
        mutants.close()
    print(f"{len(lived)} of {len(chosen(sys.argv[1:]))} lived")
    sys.exit(1 if lived else 0)


if __name__ == "__main__":
    main()
