"""The Python that runs Spark's workers on this machine: this one, with its own PySpark.

Spark has its workers look for PySpark in zip files first, and Python compiles what it takes from a
zip file anew in each process: six tenths of a second, in each of the dozen that a query starts. The
PySpark that is installed is the same, and compiled.
"""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pyspark

from purgatory.analysis.spark.java import cache_folder

_SCRIPT = """\
#!/bin/sh
PYTHONPATH=${{PYTHONPATH#*/pyspark.zip:}}
PYTHONPATH=${{PYTHONPATH#*-src.zip:}}
export PYTHONPATH
exec {python} "$@"
"""


def worker_python(environment: Mapping[str, str]) -> str:
    """Return the program that workers on this machine are started by.

    It is made once, and then found again; where it can't be made, or PySpark isn't where a worker
    would find it, it is this Python itself.

    Args:
        environment: variables as in `os.environ`; XDG_CACHE_HOME and PYTHONPATH are read.
    """
    if not _finds_pyspark(environment):
        return sys.executable
    text = _SCRIPT.format(python=shlex.quote(sys.executable))
    program = cache_folder(environment) / f"python-{sha256(text.encode()).hexdigest()[:16]}"
    if not os.access(program, os.X_OK):
        with suppress(OSError):
            _make(program, text)
    return str(program) if os.access(program, os.X_OK) else sys.executable


def _finds_pyspark(environment: Mapping[str, str]) -> bool:
    """Tell whether a new process of this Python has PySpark without being told where."""
    places = environment.get("PYTHONPATH", "").split(os.pathsep)
    places += [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    folder = os.path.realpath(Path(pyspark.__file__).parents[1])
    return folder in map(os.path.realpath, filter(None, places))


def _make(program: Path, text: str) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    # Another process may do the same now: it is there whole, or not at all.
    with tempfile.TemporaryDirectory(prefix=".python-", dir=program.parent) as folder:
        made = Path(folder) / program.name
        made.write_text(text, encoding="utf-8")
        made.chmod(0o755)
        made.replace(program)
