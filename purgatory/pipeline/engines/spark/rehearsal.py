"""The making of an archive of Spark's classes: those that an analysis of a few rows loads.

    python -m purgatory.pipeline.engines.spark.rehearsal ARCHIVE

makes it at the lowest priority and within bounds: that is the process
which `class_archive.make_in_background` starts.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from purgatory.pipeline.engines.run import run_opened
from purgatory.pipeline.engines.spark.class_archive import RETRY_S, attempt_path
from purgatory.pipeline.engines.spark.opened_traces import SparkTraces
from purgatory.pipeline.engines.spark.session import end_java, spark_session
from purgatory.pipeline.engines.termination import end
from purgatory.pipeline.errors import OutputError
from purgatory.pipeline.ingest.trace_set import read_trace_set
from purgatory.pipeline.jobs.registry import OCCUPANCY, WAITS
from purgatory.trace.table_rows import OperationRow, ReadRow, SendRow
from purgatory.trace.trace_writer import TraceWriter

Rehearsal = Callable[[SparkSession, Path], None]

_MAKING = ".making-"
_HEAP_BYTES = 512 << 20
_MOST_PROCESSOR_S = 300
_MOST_S = 900
_MOST_BYTES = 512 * 1024 * 1024


def make_archive(
    archive: Path, rehearsals: Sequence[Rehearsal], settings: Mapping[str, str] | None = None
) -> None:
    """Make an archive of what some rehearsals use, in a Spark session of its own.

    Takes as much of a processor as three or four short analyses, and 200 MB of disk.

    Args:
        archive: the file to make or to replace.
        rehearsals: run one after the other, each with an empty folder.
        settings: more of Spark's for the session.

    Raises:
        OutputError: there is no place for it.
        SessionError: Spark does not start.
    """
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{archive.parent}: {error.strerror}; set XDG_CACHE_HOME") from error
    for remaining in archive.parent.glob(f"{_MAKING}*"):  # by processes that were killed
        with suppress(OSError):
            if time.time() - remaining.stat().st_mtime > RETRY_S:
                shutil.rmtree(remaining, ignore_errors=True)
    with TemporaryDirectory(prefix=_MAKING, dir=archive.parent) as folder:
        draft = Path(folder) / archive.name
        with spark_session(
            "local[2]", small=True, settings=settings, archive_to=draft, memory=_HEAP_BYTES
        ) as session:
            for number, rehearse in enumerate(rehearsals):
                subfolder = Path(folder) / str(number)
                subfolder.mkdir()
                rehearse(session, subfolder)
        end_java()
        if not draft.exists():
            raise OutputError(
                f"Java made no archive in {archive.parent}: is there room for 200 MB?"
            )
        draft.replace(archive)
    attempt_path(archive).unlink(missing_ok=True)


def rehearse_analysis(session: SparkSession, folder: Path) -> None:
    """Run jobs over a trace of a few rows, for the classes that they load: the others use the same.

    Args:
        session: to run them in.
        folder: an empty one; all is written there.
    """
    trace = TraceWriter(folder / "trace", run_id="rehearsal", scenario="rehearsal", seed=0)
    for number in range(10):
        at_us = number * 1_000
        keys = ("orders-0",)
        trace.operation(
            OperationRow(
                *(0, "Produce", number, 1, 30_000, at_us, at_us + 500, 500, "completed"),
                *("produce", keys),
            )
        )
        trace.send(
            SendRow(
                *("producers", 0, number, 1, 0, number, -1, "ok", None, at_us, at_us + 500),
                *("orders", 0, number, 100),
            )
        )
        trace.read(ReadRow("readers", 0, number, "orders", 0, number, number, at_us + 700, True))
    trace.finish(10, {})
    trace_set = read_trace_set([folder / "trace"])
    for job in (WAITS, OCCUPANCY):
        (folder / job.name).mkdir()
        run_opened(job, SparkTraces(session, trace_set, folder / job.name))


def _main() -> None:
    """Make the archive that the first argument names, within bounds."""
    archive = Path(sys.argv[1])
    os.nice(19)
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGXCPU):
        signal.signal(number, end)  # so that temporary folders go
    signal.alarm(_MOST_S)
    for limit, most in (
        (resource.RLIMIT_CPU, _MOST_PROCESSOR_S),
        (resource.RLIMIT_FSIZE, _MOST_BYTES),
    ):
        hard = resource.getrlimit(limit)[1]
        if hard == resource.RLIM_INFINITY or hard > most:
            resource.setrlimit(limit, (most, hard))
    make_archive(archive, [rehearse_analysis])


if __name__ == "__main__":
    _main()
