"""The tests of the capture once more, with the MariaDB of a later Debian."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.databases.cdc.unpacked_mariadb import unpack

_ROOT = Path(__file__).parents[4]
_FILES = ("test_binlog_transactions", "test_capture_types", "test_character_sets")


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_capture_is_right_with_the_mariadb_of_debian_13() -> None:
    # The server's own user reads its files, and pytest's folders are for others only.
    with tempfile.TemporaryDirectory(prefix="purgatory-mariadb-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        _check_with(folder)


def _check_with(folder: Path) -> None:
    try:
        programs = unpack(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"Debian's packages can't be had: {error}")
    tests = [f"tests/databases/cdc/capture/{name}.py" for name in _FILES]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:faker", *tests],
        cwd=_ROOT,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
