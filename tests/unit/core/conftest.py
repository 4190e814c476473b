"""Fixtures of the purgatory's tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import structlog

from tests.unit.core.probe import Logs


@pytest.fixture(autouse=True)
def logs() -> Iterator[Logs]:
    """Collect log events, instead of rendering thousands of tracebacks."""
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest.fixture
def no_thread_remains() -> Iterator[None]:
    """Assert that the test's threads have ended, or are on their way out."""
    before = set(threading.enumerate())
    yield
    started = set(threading.enumerate()) - before
    for thread in started:  # one that closed a purgatory from its own callback
        thread.join(30)
    assert not [thread for thread in started if thread.is_alive()]
