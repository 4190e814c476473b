"""Fixtures of the tests that need nothing but Python."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _collected_tests_are_frozen() -> None:
    """Keep the collector from going through all tests and modules: half a million objects.

    Simulations and tests of memory collect garbage hundreds of times, half a second each. What was
    frozen before is not looked at again here.
    """
    gc.collect()
    gc.freeze()
