"""What all tests share."""

from __future__ import annotations

import pytest
import structlog
from hypothesis import settings

# A shared or throttled machine must not fail a test by being slow: pytest's own limit is enough.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _unconfigured_logs() -> None:
    """Begin as a program that configured nothing; commands that ran before did."""
    structlog.reset_defaults()
