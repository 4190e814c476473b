"""pytest as users of the package run it, in a process and a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WITHOUT_OTHERS = ("-p", "no:cacheprovider", "-p", "no:faker", "-p", "no:hypothesispytest")
"""No plugins that these tests don't use: they are a third of such a process."""
INI = "[pytest]\naddopts = --strict-markers\n"


def run_pytest(folder: Path, *words: str, text: str, ini: str = INI) -> tuple[int, str]:
    """Run a file of tests; return the exit status, and the output."""
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text(ini)
    command = [sys.executable, "-m", "pytest", *WITHOUT_OTHERS, *words]
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment.pop("PYTHONHASHSEED", None)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr
