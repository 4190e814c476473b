"""The instructions of an event, an add and a cancel: how many are CPython's, and how many ours.

    python -m tests.benchmarks.core_instructions

Callgrind counts them by the library that has them, for two numbers of operations: the difference
leaves out what starts and ends the program. CPython's are those of the interpreter and the C
library: objects that are made and freed, calls of methods by name, frames of the user's Python
functions, looks into dicts by key, the loop. Some are asked for by our code, such as a call of a
method or a look into a dict.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from purgatory import DelayedOperationPurgatory
from tests.benchmarks.measurement import Figure, Size, run_alone, say
from tests.benchmarks.purgatory_throughput import TRIPLES, Waiting, by_event, by_force
from tests.benchmarks.timer_add_cancel import Task
from timer import SystemTimer

DELAY_MS = 30_000


def make(count: int) -> None:
    for number in range(count):
        _ = TRIPLES[number % 100]
        operation = Waiting()
        operation.ready = True


def _in_purgatory(work: Callable[[DelayedOperationPurgatory, int], None], count: int) -> None:
    timer = SystemTimer("Instructions")
    purgatory: DelayedOperationPurgatory = DelayedOperationPurgatory(
        "Instructions", timer=timer, reaper_enabled=False
    )
    work(purgatory, count)


def _on_timer(count: int, adds: bool, cancels: bool) -> None:
    timer = SystemTimer("Instructions")
    tasks = [Task(DELAY_MS) for _ in range(count)]
    for task in tasks if adds else ():
        timer.add(task)
    for task in tasks if cancels else ():
        task.cancel()
    timer.close()


WORK: dict[str, Callable[[int], None]] = {
    "an operation made, and freed": make,
    "one watched on 3 keys, forced": lambda count: _in_purgatory(by_force, count),
    "one watched on 3 keys, completed by an event": lambda count: _in_purgatory(by_event, count),
    "a task made, and freed": lambda count: _on_timer(count, False, False),
    "one added": lambda count: _on_timer(count, True, False),
    "one added, cancelled": lambda count: _on_timer(count, True, True),
}


def run_counted(name: str, count: int) -> None:
    """Do so many, in a process that callgrind watches; it ends without more ado."""
    gc.disable()  # it would come round at another operation in each run
    WORK[name](100)
    WORK[name](count)
    os._exit(0)


def counted(name: str, count: int) -> Counter[str]:
    """Return instructions by library."""
    program = (
        f"from tests.benchmarks.core_instructions import run_counted as r; r({name!r}, {count})"
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        subprocess.run(
            [
                *("valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"),
                *(sys.executable, "-c", program),
            ],
            env=os.environ | {"PYTHONHASHSEED": "0"},
            capture_output=True,
            check=True,
        )
        return by_library(out)


def by_library(out: Path) -> Counter[str]:
    """Add up a file of callgrind's, without the lines that repeat what is called."""
    names: dict[str, str] = {}
    library, is_call = "", False
    found: Counter[str] = Counter()
    for line in out.read_text().splitlines():
        if name := re.match(r"c?ob=\((\d+)\)(?: (.*))?$", line):
            names.setdefault(name[1], name[2] or "")
            if line.startswith("ob="):
                library = names[name[1]]
        elif line.startswith("calls="):
            is_call = True
        elif re.match(r"[+\-*\d]", line):
            if not is_call:
                found[library] += int(line.split()[1])
            is_call = False
    return found


def measure(size: Size = Size.USUAL) -> list[Figure]:
    if size is Size.SMALL or shutil.which("valgrind") is None:
        say("instructions are counted by valgrind, not in small")
        return [Figure("instructions", 0, "", 0)]
    few, many = 500, 2_500
    figures = []
    for name in WORK:
        libraries = counted(name, many)
        libraries.subtract(counted(name, few))
        ours = sum(count for library, count in libraries.items() if "/native/" in library)
        total = libraries.total() / (many - few)
        figures += [
            Figure(f"{name}: CPython's", total - ours / (many - few), ""),
            Figure(f"{name}: ours", ours / (many - few), ""),
        ]
    return figures


if __name__ == "__main__":
    run_alone(measure)
