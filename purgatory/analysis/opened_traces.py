"""The traces in some folders, opened for a job: a Spark session, and a folder to write into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from purgatory.analysis.result_folder import check_output, output_folder
from purgatory.analysis.running import RunningAnywhere
from purgatory.analysis.spark.session import MOST_SMALL_ROWS, spark_session
from purgatory.analysis.traces.column_mapping import read_mapping
from purgatory.analysis.traces.survey import Survey, survey


class Running(RunningAnywhere, total=False):
    """How a job runs, as `opened_traces` takes it."""

    master: str


@dataclass(frozen=True)
class OpenedTraces:
    """What a job works on: the folder is None where nothing is written."""

    session: SparkSession
    found: Survey
    folder: Path | None
    strict: bool


@contextmanager
def opened_traces(
    roots: Sequence[Path],
    out: Path | None,
    tables: Sequence[str] = ("operations",),
    *,
    master: str = "local[*]",
    overwrite: bool = False,
    progress: bool | None = False,
    mapping: Path | None = None,
    strict: bool = False,
) -> Iterator[OpenedTraces]:
    """All traces in some folders, in a session of their own; the results count once all are there.

    Args:
        roots: folders that are a trace each, or contain traces.
        out: the folder to make; None writes nothing.
        tables: those whose rows say how much work it is.
        master: the Spark master.
        overwrite: replace earlier results in `out`.
        progress: show on standard error how far Spark is; None does so on a terminal only.
        mapping: the file that says where columns of other names are.
        strict: stop at a bad row or file; otherwise it is set aside and counted.

    Raises:
        PipelineError: one of them is not as it must be, or, strict, anything in the traces isn't;
            in that case `out` is as it was.
    """
    found = survey(roots, None if mapping is None else read_mapping(mapping), strict=strict)
    if out is not None:
        check_output(out, [trace.folder for trace in found.traces], overwrite)
    rows = sum(trace.rows[table] for trace in found.traces for table in tables)
    with (
        nullcontext() if out is None else output_folder(out) as folder,
        spark_session(master, small=rows <= MOST_SMALL_ROWS, progress=progress) as session,
    ):
        yield OpenedTraces(session, found, folder, strict)
