"""Runs what may break the interpreter's own modules in a process of its own.

A signal's handler that raises, or a stack at its end, may leave a lock of the standard library
taken: ``logging`` takes its lock before the ``try`` that gives it back. The next thread that logs
would wait for ever, be it in another test.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
LONGEST_S = 100


def run_in_own_process(function: Callable[..., None], *arguments: str) -> None:
    """Call a module's ``function``, and raise an AssertionError with what it said if it raised."""
    name = f"{function.__module__}.{function.__qualname__}"
    program = f"from {function.__module__} import {function.__qualname__} as run\nrun(*{arguments})"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert ended.returncode == 0, f"{name}{arguments}: {ended.stdout}{ended.stderr}"
