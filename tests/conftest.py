"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# A shared or throttled machine must not fail a test by being slow: pytest's own limit is enough.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
