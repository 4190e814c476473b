"""What the purgatory's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tests.purgatory.probe import Logs


@pytest.fixture(autouse=True)
def logs() -> Iterator[Logs]:
    """Collect what is logged, instead of rendering thousands of tracebacks."""
    with structlog.testing.capture_logs() as entries:
        yield entries
