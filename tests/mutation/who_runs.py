"""A plugin of pytest that notes which tests run which lines, and how long each takes.

    WHO_RUNS=map.json pytest -p tests.mutation.who_runs ...

A test that traces by itself hides what it runs from then on, and one that fails, since tracing
is slow, is left out. The map is JSON: by file and line, the names of the tests; and by name of a
test, its seconds.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = tuple(str(ROOT / folder) + os.sep for folder in ("timer", "purgatory"))


class WhoRuns(NamedTuple):
    """The tests that run each line.

    Args:
        tests: by file, relative to the project, and line.
        seconds: by test.
    """

    tests: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def of_lines(self, file: str, first: int, last: int, most_s: float) -> list[str]:
        """The quickest tests that run any of these lines: at least one, and ``most_s`` in all."""
        lines = self.tests.get(file, {})
        found = {test for line in range(first, last + 1) for test in lines.get(line, ())}
        chosen: list[str] = []
        for test in sorted(found, key=self.seconds.__getitem__):
            most_s -= self.seconds[test]
            if chosen and most_s < 0:
                break
            chosen.append(test)
        return chosen


def read_map(path: Path) -> WhoRuns:
    """Read what the plugin wrote."""
    document = json.loads(path.read_text(encoding="utf-8"))
    tests = {
        file: {int(line): names for line, names in lines.items()}
        for file, lines in document["tests"].items()
    }
    return WhoRuns(tests, document["seconds"])


class Plugin:
    """Traces each test."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._seen: set[tuple[str, int]] = set()

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDERS):
            return None
        self._seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._trace

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._seen = set()
        began_s = time.perf_counter()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.seconds[item.nodeid] = time.perf_counter() - began_s
            for file, line in self._seen:
                self.tests[os.path.relpath(file, ROOT)][line].add(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        tests = {
            file: {line: sorted(names - self._failed) for line, names in lines.items()}
            for file, lines in self.tests.items()
        }
        document = {"tests": tests, "seconds": self.seconds}
        Path(os.environ["WHO_RUNS"]).write_text(json.dumps(document), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Take part."""
    config.pluginmanager.register(Plugin())
