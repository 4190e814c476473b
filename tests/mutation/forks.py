"""Runs tests in forks of one process that has pytest imported, but nothing of the project.

    python -m tests.mutation.forks

Reads a line of JSON for each run, ``[[argument of pytest, ...], seconds]``, and answers ``passed``,
``failed`` or ``timeout``. Only the project is imported anew for each run, from the folder in which
this runs. A run that starts threads without end is stopped by a limit on its memory.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import hypothesis.stateful
import pytest
import structlog

LOADED = (pytest, hypothesis.stateful, structlog)
"""The modules that take long to import, and are not under test."""

OPTIONS = (
    *("-q", "-x", "-p", "no:cacheprovider"),
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
)

MOST_BYTES = 6 << 30
"""Of addresses: some seven hundred threads have room for their stacks."""


def run(arguments: Sequence[str], timeout_s: float) -> str:
    """Run pytest in a fork, and return how that ended. No process of it remains."""
    child = os.fork()
    if not child:
        _run_here(arguments)
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            _kill(child)
            return "failed" if status else "passed"
        time.sleep(0.01)
    _kill(child)
    os.waitpid(child, 0)
    return "timeout"


def _run_here(arguments: Sequence[str]) -> None:
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        # Two mutants of one size may be written within a second, and a cached one pass for both.
        sys.dont_write_bytecode = True
        os._exit(pytest.main([*OPTIONS, *arguments]))
    finally:
        os._exit(1)


def _kill(session: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)


if __name__ == "__main__":
    for line in sys.stdin:
        print(run(*json.loads(line)), flush=True)
