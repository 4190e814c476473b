"""A call of the table in each covering state, each allocation of which fails in turn."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proofs.drawn import seed

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("_testcapi") is None, reason="this Python can't fail allocations"
)


@pytest.mark.parametrize(
    "share",
    [
        # Red by places where CPython's own calls fail, and by some where memory fails in a close:
        # by night, until each place is either promised or named.
        pytest.param(0.05, id="some", marks=pytest.mark.exhaustive),
        pytest.param(1, id="all", marks=[pytest.mark.exhaustive, pytest.mark.timeout(1800)]),
    ],
)
def test_allocation_that_fails_leaves_nothing_stuck_or_lost(share: float) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.proofs.failing_allocations", str(share)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PURGATORY_SEED": str(seed())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr[-4_000:]}"
