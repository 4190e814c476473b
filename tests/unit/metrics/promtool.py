"""Prometheus' own tools, as the tests call them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MONITORING = Path(__file__).parents[3] / "docs" / "monitoring"


def installed(command: str) -> str:
    """Return the path of ``command``; skip the test where it is missing, or fail it in CI."""
    path = shutil.which(command)
    if path is None:
        missing = f"{command} is not installed; on Debian and Ubuntu: apt-get install prometheus"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return path


def promtool(*arguments: str | Path, text: str | None = None) -> str:
    """Run promtool, with ``text`` as its input; fail the test unless it is content."""
    ran = subprocess.run(
        [installed("promtool"), *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr
