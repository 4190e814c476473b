"""The rules of tests that the interpreter can see, as a plugin of pytest.

A level (`conftest.LEVELS`) starts no process and opens no socket unless its name says so. A test
that takes more than a second of processor is marked `slow`. The processor of each level is shown at
the end. A test whose subject has its file among the unit tests, and which runs in a process of its
own all the same, is marked `own_process`.

Ground rules: all state belongs to the thread of the tests; the audit hook, which runs on every
thread, looks at no other.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections import defaultdict
from collections.abc import Generator

import pytest

PROCESS_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
SOCKET_EVENTS = frozenset({"socket.bind", "socket.connect"})
WITHOUT_PROCESSES = ("unit", "world")
WITHOUT_SOCKETS = ("unit", "world", "proofs")
REAL = tuple(
    f"tests/world/virtual/test_{name}.py"
    for name in (
        *("ecosystem", "hosts", "network", "sandbox", "world_cluster"),
        *("interrupted_world", "schedules", "shrinking", "story", "story_document"),
        "virtual_marker",
    )
)
"""The files of worlds that compare them with the real thing, or run pytest as a user does."""

QUICK_S = 1.0
TOLERANCE = 20.0
"""The factor by which an unmarked test may take longer on a busy machine before it fails."""

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
        self._is_last = False
        self._levels: dict[str, float] = defaultdict(float)
        self._thread = threading.get_ident()
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if threading.get_ident() != self._thread:
            return  # such as a client's that an earlier test left
        if event in PROCESS_EVENTS:
            if arguments[:1] == ("fc-list",):
                return  # Matplotlib's, once, where it doesn't know the machine's fonts yet
            if self._level in WITHOUT_PROCESSES:
                self._broken.append(f"starts a process ({event})")
        elif event not in SOCKET_EVENTS or self._level not in WITHOUT_SOCKETS:
            return
        elif not isinstance(arguments[1], str | bytes):  # a path is no address of a network
            self._broken.append(f"opens a socket ({event} {arguments[1]})")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        self._broken.clear()
        self._is_last = nextitem is None
        self._before_s = _processor_s()
        is_real = item.nodeid.startswith(REAL) or item.get_closest_marker("own_process")
        self._level = "" if is_real else _level(item.nodeid)
        try:
            return (yield)
        finally:
            self._level = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        if self._is_last:  # the session's end: servers that tests of other levels shared may end
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
            may_be_long = (
                _level(item.nodeid) in LONG_LEVELS
                or item.get_closest_marker("slow")
                or item.get_closest_marker("exhaustive")
                or "PYTHONMALLOC" in os.environ
                or self._is_last  # which ends what all tests of the session shared
            )
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
