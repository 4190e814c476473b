"""The tests of the capture, and 25 random programs, with each server that isn't the system's.

With those of the system's own (`statements/test_statements.py`), a night runs 325 programs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.databases.cdc.unpacked_servers import SERVERS, unpack

_ROOT = Path(__file__).parents[3]
_FILES = ("capture", "ddl", "statements")


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(SERVERS))
def test_capture_is_right_with_another_server(name: str) -> None:
    # The server's own user reads its files, and pytest's folders are for others only.
    with tempfile.TemporaryDirectory(prefix="purgatory-servers-") as folder:
        Path(folder).chmod(0o755)
        _check_with(Path(folder), name)


def _check_with(folder: Path, name: str) -> None:
    try:
        programs = unpack(folder, name)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"{name} can't be had: {error}")
    tests = [str(Path(__file__).parent / folder) for folder in _FILES]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:faker", "-m", "not exhaustive", *tests],
        cwd=_ROOT,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
