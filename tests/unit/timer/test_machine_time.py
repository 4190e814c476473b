"""The machine's clocks, which no library that freezes a test's time replaces."""

from __future__ import annotations

import re
import time as shared
from pathlib import Path

import pytest

from timer import SystemClock
from timer.machine_time import time

_ROOT = Path(__file__).parents[3]
_PACKAGES = (
    "timer",
    *(f"purgatory/{name}" for name in ("core", "cluster", "kafka", "proxy", "debug")),
    *(f"purgatory/{name}" for name in ("shared", "metrics", "trace")),
)
_IMPORTS = re.compile(r"^\s*(import time\b|from time import)", re.MULTILINE)
_FUNCTIONS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep", "gmtime")


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_functions_are_references_of_their_own(name: str) -> None:
    assert getattr(time, name) is not getattr(shared, name)


def test_clocks_are_those_of_the_machine() -> None:
    assert abs(time.monotonic() - shared.monotonic()) < 60
    assert abs(time.time() - shared.time()) < 60
    assert SystemClock.now_ns is time.monotonic_ns


def test_packages_take_their_clocks_from_there() -> None:
    others = [
        path.relative_to(_ROOT).as_posix()
        for package in _PACKAGES
        for path in (_ROOT / package).rglob("*.py")
        if _IMPORTS.search(path.read_text())
    ]
    assert others == ["timer/machine_time.py"]
