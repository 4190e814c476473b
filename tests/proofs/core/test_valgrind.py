"""Under valgrind, native objects leak nothing and touch no foreign memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory.core.backend import NATIVE

pytestmark = [
    pytest.mark.skipif(not NATIVE, reason="the native parts are not in use"),
    pytest.mark.exhaustive,
]

ROOT = Path(__file__).parents[3]


def valgrind_over(rounds: int, log: Path) -> str:
    """Return valgrind's report on a process that makes and drops all objects so many times."""
    command = ["valgrind", "--leak-check=full", "--num-callers=30", f"--log-file={log}"]
    ended = subprocess.run(
        [*command, sys.executable, "-m", "tests.unit.core.many_lives", str(rounds)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONMALLOC": "malloc",
            "PYTHONHASHSEED": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3_000:]
    return log.read_text(encoding="utf-8")


def left_at_the_end(told: str) -> tuple[int, int]:
    """Return the bytes that nothing points to any more, and all that were not given back."""
    lines = re.findall(r"(?:lost|reachable): ([\d,]+) bytes in [\d,]+ blocks", told)
    definitely, indirectly, *others = [int(line.replace(",", "")) for line in lines]
    return definitely + indirectly, sum(others)


def test_valgrind_finds_no_leak_in_rounds_of_all_calls(tmp_path: Path) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("there is no valgrind on this machine")
    few, many = (valgrind_over(rounds, tmp_path / f"{rounds}.log") for rounds in (5, 25))
    assert left_at_the_end(few) == left_at_the_end(many), "not one byte more"
    assert left_at_the_end(many)[0] == 0
    while_it_ran, _, _ = many.partition("HEAP SUMMARY")
    assert "Invalid" not in while_it_ran
    # The values that valgrind finds uninitialised are the interpreter's own, in its random numbers.
    assert "__pyx" not in while_it_ran
