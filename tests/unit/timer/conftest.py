"""Fixtures of the timer's tests: a clock that is moved by hand, and a timer on it."""

from __future__ import annotations

import pytest

from tests.unit.timer.named_task import inline_timer
from timer import ManualClock, SystemTimer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000)


@pytest.fixture
def timer(clock: ManualClock) -> SystemTimer:
    return inline_timer(clock)


@pytest.fixture
def ran() -> list[object]:
    return []
