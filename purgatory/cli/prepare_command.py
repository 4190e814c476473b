"""The command ``purgatory prepare``: an archive of Spark's classes, for quicker starts."""

from __future__ import annotations

import os
import sys

from purgatory.cli import options
from purgatory.cli.exit_status import exit_on_error

_MIB = 1024 * 1024


def prepare(overwrite: options.Overwrite = False) -> None:
    """Make Spark start quicker on this machine: once for each Java and each version of Spark.

    The first analysis does so in the background; this does it at once, as for an image.
    Every command that starts Spark finds the archive below ~/.cache, or $XDG_CACHE_HOME.
    """
    with exit_on_error("prepare"):
        from purgatory.pipeline.engines.spark.class_archive import archive_path
        from purgatory.pipeline.engines.spark.java import find_java_home
        from purgatory.pipeline.engines.spark.rehearsal import make_archive, rehearse_analysis

        archive = archive_path(find_java_home(os.environ), os.environ)
        if archive.exists() and not overwrite:
            print(f"{archive} exists already (--overwrite replaces it)")
            return
        print("running each job once, for a minute or two ...", file=sys.stderr, flush=True)
        try:
            from purgatory.pipeline.stream.stream import SETTINGS, rehearse
        except ModuleNotFoundError:  # the extra `live` is not installed, so nobody streams
            make_archive(archive, [rehearse_analysis])
        else:
            make_archive(archive, [rehearse_analysis, rehearse], SETTINGS)
        print(f"{archive}: {archive.stat().st_size / _MIB:.0f} MiB")
