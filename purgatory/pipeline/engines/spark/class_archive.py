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
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyspark

from purgatory.pipeline.engines.spark.java import cache_folder
from purgatory.pipeline.errors import OutputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Rehearsal = Callable[[SparkSession, Path], None]

OPT_OUT = "PURGATORY_NO_CLASS_ARCHIVE"
"""The variable which, set to anything, keeps analyses from making an archive."""

# What Java has to say of archives goes where its other words go, not between ours.
_LOG = "-Xlog:disable -Xlog:all=warning:stderr"
_MAKING = ".making-"
_RETRY_S = 24 * 3600.0
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


def make_archive(
    archive: Path, rehearsals: Sequence[Rehearsal], settings: Mapping[str, str] | None = None
) -> None:
    """Make an archive of what some rehearsals use, in a Spark session of its own.

    Takes half a minute of processor time, and 200 MB of disk.

    Args:
        archive: the file to make or to replace.
        rehearsals: run one after the other, each with an empty folder.
        settings: more of Spark's for the session.

    Raises:
        OutputError: there is no place for it.
        SessionError: Spark does not start.
    """
    from purgatory.pipeline.engines.spark.session import end_java, spark_session

    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{archive.parent}: {error.strerror}; set XDG_CACHE_HOME") from error
    for left in archive.parent.glob(f"{_MAKING}*"):  # by processes that were killed
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _RETRY_S:
                shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(prefix=_MAKING, dir=archive.parent) as folder:
        made = Path(folder) / archive.name
        with spark_session("local[2]", small=True, settings=settings, archive_to=made) as session:
            for number, rehearse in enumerate(rehearsals):
                place = Path(folder) / str(number)
                place.mkdir()
                rehearse(session, place)
        end_java()
        if not made.exists():
            raise OutputError(
                f"Java made no archive in {archive.parent}: is there room for 200 MB?"
            )
        made.replace(archive)
    _attempt(archive).unlink(missing_ok=True)


def make_in_background(archive: Path) -> None:
    """Have another process make an archive that is not there, at the lowest priority.

    It outlives this one, says nothing, and is bounded in time, processor time and disk. Does
    nothing if `OPT_OUT` is set, if the folder can't be written, or if it was tried within a day.
    """
    if OPT_OUT in os.environ or archive.exists():
        return
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        if not _claim(_attempt(archive)):
            return
        subprocess.Popen(
            [sys.executable, "-m", _MAKER, str(archive)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ).returncode = 0  # nobody waits for it, and Python need not warn of that
    except OSError:
        return  # a quicker start is not worth an error


def _attempt(archive: Path) -> Path:
    return archive.with_suffix(".attempt")


def _claim(attempt: Path) -> bool:
    """Whether this process is to make the archive; the attempt file says so to others."""
    try:
        os.close(os.open(attempt, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        if time.time() - attempt.stat().st_mtime < _RETRY_S:
            return False
        os.utime(attempt)
    return True
