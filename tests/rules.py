"""The rules of tests that the interpreter can see, as a plugin of pytest.

A level (`conftest.LEVELS`) starts no process and opens no socket unless its name says so. A test
that takes more than a second of processor is marked `slow`. The processor of each level is shown at
the end.

Ground rules: the audit hook runs on every thread, and only appends to a list, which is read and
cleared between tests on the main thread.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Generator

import pytest

PROCESS_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
SOCKET_EVENTS = frozenset({"socket.bind", "socket.connect"})
WITHOUT_PROCESSES = ("unit", "world")
WITHOUT_SOCKETS = ("unit", "world", "proofs")
QUICK_S = 1.0
TOLERANCE = 3.0
"""How much longer an unmarked test may take on a busy machine before it fails."""

LONG_LEVELS = ("spark", "databases", "browser")
"""The levels whose first test pays for the start of what all share."""

REPEATED = (
    "PURGATORY_PURE",
    "PURGATORY_STATEMENTS_SEED",
    "PURGATORY_PROOFS_SEED",
    "PYTHONHASHSEED",
)


class Rules:
    """The rules, and the processor that each test takes, with the processes that it waited for."""

    def __init__(self) -> None:
        self._level = ""
        self._broken: list[str] = []
        self._before_s = 0.0
        self._levels: dict[str, float] = defaultdict(float)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in PROCESS_EVENTS:
            if self._level in WITHOUT_PROCESSES:
                self._broken.append(f"starts a process ({event})")
        elif event in SOCKET_EVENTS and self._level in WITHOUT_SOCKETS:
            self._broken.append(f"opens a socket ({event} {arguments[1]})")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._broken.clear()
        self._before_s = _processor_s()
        self._level = _level(item.nodeid)
        try:
            return (yield)
        finally:
            self._level = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            report.sections.insert(0, (f"Repeat {_part(item)} by", _command(item)))
        if report.when == "teardown":
            took_s = _processor_s() - self._before_s
            report.user_properties.append(("processor_s", took_s))
            may_be_long = self._level in LONG_LEVELS or item.get_closest_marker("slow")
            if took_s > QUICK_S * TOLERANCE and not may_be_long:
                self._broken.append(f"takes {took_s:.1f} s of processor: mark it slow")
            if self._broken and report.passed:
                report.outcome = "failed"
                report.longrepr = f"{item.nodeid} {'; '.join(sorted(set(self._broken)))}"
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        took_s = dict(report.user_properties).get("processor_s")
        if report.when == "teardown" and isinstance(took_s, float):
            self._levels[_level(report.nodeid)] += took_s

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._levels:
            levels = ", ".join(f"{level} {took_s:.0f}" for level, took_s in self._levels.items())
            terminalreporter.write_line(
                f"{sum(self._levels.values()):.0f} s of processor, without Spark's Java: {levels}"
            )


def _level(nodeid: str) -> str:
    return nodeid.split("/")[1] if nodeid.startswith("tests/") else ""


def _part(item: pytest.Item) -> str:
    """The part of the product that the test is of: ``core`` for tests/unit/core."""
    return "/".join(item.nodeid.split("::")[0].split("/")[2:-1]) or "this"


def _command(item: pytest.Item) -> str:
    settings = [f"{name}={os.environ[name]} " for name in REPEATED if os.environ.get(name)]
    return f"{''.join(settings)}.venv/bin/python -m pytest {shlex.quote(item.nodeid)}"


def _processor_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
