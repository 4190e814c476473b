"""The command ``purgatory prepare``: an archive of Spark's classes, for quicker starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from purgatory.cli import options
from purgatory.cli.exit_status import one_line_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIB = 1024 * 1024


def prepare(overwrite: options.Overwrite = False) -> None:
    """Make Spark start quicker on this machine: once for each Java and each version of Spark.

    Every command that starts Spark finds the archive below ~/.cache, or $XDG_CACHE_HOME.
    """
    with one_line_errors("prepare"):
        from purgatory.pipeline.engines.spark.java import archive_path, find_java_home
        from purgatory.pipeline.stream.stream import (
            rehearse,  # what is missing is told before all else
        )

        archive = archive_path(find_java_home(os.environ), os.environ)
        if archive.exists() and not overwrite:
            print(f"{archive} is there already (--overwrite makes it anew)")
            return
        print("running what there is once, for half a minute ...", file=sys.stderr, flush=True)
        _make(archive, rehearse)
        print(f"{archive}: {archive.stat().st_size / _MIB:.0f} MiB")


def _make(archive: Path, rehearse: Callable[[SparkSession, Path], None]) -> None:
    from purgatory.pipeline.engines.spark.session import end_java, spark_session
    from purgatory.pipeline.errors import OutputError
    from purgatory.pipeline.stream.stream import SETTINGS

    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{archive.parent}: {error.strerror}; set XDG_CACHE_HOME") from error
    with TemporaryDirectory(prefix=".making-", dir=archive.parent) as folder:
        made = Path(folder) / archive.name
        rows = Path(folder) / "rows"
        rows.mkdir()
        with spark_session("local[2]", settings=SETTINGS, archive_to=made) as session:
            rehearse(session, rows)
        end_java()
        if not made.exists():
            raise OutputError(
                f"Java made no archive in {archive.parent}: is there room for 200 MB?"
            )
        made.replace(archive)
