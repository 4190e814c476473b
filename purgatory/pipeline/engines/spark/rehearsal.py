"""An analysis of a few rows, for the classes that Spark loads on the way.

    python -m purgatory.pipeline.engines.spark.rehearsal ARCHIVE

makes an archive of these classes, at the lowest priority and within bounds: that is the process
which `class_archive.make_in_background` starts.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from purgatory.pipeline.engines.run import run_opened
from purgatory.pipeline.engines.spark.class_archive import make_archive
from purgatory.pipeline.engines.spark.opened_traces import SparkTraces
from purgatory.pipeline.ingest.trace_set import survey
from purgatory.pipeline.jobs.registry import ANALYZE
from purgatory.trace.table_rows import OperationRow, ReadRow, SendRow
from purgatory.trace.trace_writer import TraceWriter

_MOST_PROCESSOR_S = 300
_MOST_S = 900
_MOST_BYTES = 512 * 1024 * 1024


def rehearse_analysis(session: SparkSession, folder: Path) -> None:
    """Run all jobs of an analysis over a trace of a few rows, for the classes that they load.

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
    (folder / "results").mkdir()
    run_opened(ANALYZE, SparkTraces(session, survey([folder / "trace"]), folder / "results"))


def _main() -> None:
    """Make the archive that the first argument names, within bounds."""
    archive = Path(sys.argv[1])
    os.nice(19)
    signal.alarm(_MOST_S)
    for limit, most in (
        (resource.RLIMIT_CPU, _MOST_PROCESSOR_S),
        (resource.RLIMIT_FSIZE, _MOST_BYTES),
    ):
        hard = resource.getrlimit(limit)[1]
        if hard == resource.RLIM_INFINITY or hard > most:
            resource.setrlimit(limit, (most, most))
    make_archive(archive, [rehearse_analysis])


if __name__ == "__main__":
    _main()
