"""Spark's classes as an archive that Java maps in one piece, instead of reading hundreds of jars.

Java calls it class data sharing. An archive is for one Java and one Spark; another Java, or one
with other jars, ignores it. The first analysis on a machine has it made in the background, and
`purgatory prepare` makes it at once, for images.

Ground rules: an archive is renamed into its place, so it is whole or not there, whoever is killed
when. The process that creates the attempt file beside it makes the archive; for a day nobody else
tries.

Source: JEP 350, "Dynamic CDS Archives".
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pyspark

from purgatory.pipeline.engines.engine import total_memory_bytes
from purgatory.pipeline.engines.spark.java import cache_folder

OPT_OUT = "PURGATORY_NO_CLASS_ARCHIVE"
"""The variable which, set to anything, keeps analyses from making an archive."""

# What Java has to say of archives goes where its other words go, not between ours.
_LOG = "-Xlog:disable -Xlog:all=warning:stderr"
RETRY_S = 24 * 3600.0
_LEAST_MEMORY_BYTES = 4 << 30
"""The analysis beside it needs its memory: another Java must not have it killed."""

_MAKER = "purgatory.pipeline.engines.spark.rehearsal"


def archive_path(java_home: Path, environment: Mapping[str, str]) -> Path:
    """Return where the archive for a Java is, or would be.

    Args:
        java_home: of the Java.
        environment: variables as in `os.environ`; XDG_CACHE_HOME is read.
    """
    of = sha256(f"{java_home}\n{pyspark.__file__}".encode()).hexdigest()[:12]
    return cache_folder(environment) / f"spark-{pyspark.__version__}-{of}.jsa"


def options_to_use(archive: Path) -> str:
    """Return Java's options to use an archive: none if it isn't there."""
    return f'"-XX:SharedArchiveFile={archive}" -Xshare:auto {_LOG}' if archive.exists() else ""


def options_to_make(archive: Path) -> str:
    """Return Java's options to make an archive when it exits, of the classes that it used."""
    return f'"-XX:ArchiveClassesAtExit={archive}" {_LOG}'


def make_in_background(archive: Path) -> None:
    """Have another process make an archive that is not there, at the lowest priority.

    It outlives this one, says nothing, and is bounded in time, processor time, memory and disk.
    Does nothing if `OPT_OUT` is set, if the machine or the container is small, if the folder can't
    be written, or if it was tried within a day.
    """
    if OPT_OUT in os.environ or archive.exists() or total_memory_bytes() < _LEAST_MEMORY_BYTES:
        return
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        if not _claim(attempt_path(archive)):
            return
        # A shell starts it and ends, so that it is no child of this process, which may live long.
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", sys.executable, "-m", _MAKER, str(archive)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )
    except OSError:
        return  # a quicker start is not worth an error


def attempt_path(archive: Path) -> Path:
    """Return the file that exists from the begin of an attempt to its success."""
    return archive.with_suffix(".attempt")


def _claim(attempt: Path) -> bool:
    """Whether this process is to make the archive; the attempt file says so to others."""
    try:
        os.close(os.open(attempt, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        if time.time() - attempt.stat().st_mtime < RETRY_S:
            return False
        os.utime(attempt)
    return True
