"""The traces in some folders, opened for a job: a Spark session, and a folder to write into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from purgatory.pipeline.engines.engine import RunningAnywhere
from purgatory.pipeline.engines.result_folder import (
    OutputFolder,
    check_output,
    check_uri_output,
    output_folder,
    uri_output,
)
from purgatory.pipeline.engines.spark.session import MOST_SMALL_ROWS, spark_session
from purgatory.pipeline.ingest.column_mapping import read_mapping
from purgatory.pipeline.ingest.hadoop_files import HadoopFiles
from purgatory.pipeline.ingest.stores import Place, Uri, reached
from purgatory.pipeline.ingest.trace_set import Survey, survey


class Running(RunningAnywhere, total=False):
    """How a job runs, as `opened_traces` takes it."""

    master: str


@dataclass(frozen=True)
class OpenedTraces:
    """What a job works on: the folder is None where nothing is written."""

    session: SparkSession
    found: Survey
    folder: OutputFolder | None
    strict: bool


@contextmanager
def opened_traces(
    roots: Sequence[Place],
    out: Place | None,
    tables: Sequence[str] = ("operations",),
    *,
    master: str = "local[*]",
    overwrite: bool = False,
    progress: bool | None = False,
    mapping: Path | None = None,
    strict: bool = False,
    memory: int | None = None,
) -> Iterator[OpenedTraces]:
    """All traces in some folders, in a session of their own; the results count once all are there.

    Args:
        roots: folders that are a trace each, or contain traces; URIs of such as well.
        out: the folder to make, at a URI as well; None writes nothing.
        tables: those whose rows say how much work it is.
        master: the Spark master.
        overwrite: replace earlier results in `out`.
        progress: show on standard error how far Spark is; None does so on a terminal only.
        mapping: the file that says where columns of other names are.
        strict: stop at a bad row or file; otherwise it is set aside and counted.
        memory: what Spark's driver gets, in bytes, where it is started here.

    Raises:
        PipelineError: one of them is not as it must be, or, strict, anything in the traces isn't;
            in that case `out` is as it was.
    """
    columns = None if mapping is None else read_mapping(mapping)
    local = [one for one in roots if isinstance(one, Path)]
    if len(local) < len(roots) or isinstance(out, Uri):
        # What is to be done can be told only by Spark's session.
        with spark_session(master, progress=progress, memory=memory) as session:
            found = survey(reached(lambda: HadoopFiles(session), roots), columns, strict=strict)
            with _output(out, found, overwrite, session) as folder:
                yield OpenedTraces(session, found, folder, strict)
        return
    found = survey(local, columns, strict=strict)
    rows = sum(trace.rows[table] for trace in found.traces for table in tables)
    with (
        _local_output(out, found, overwrite) as folder,
        spark_session(
            master, small=rows <= MOST_SMALL_ROWS, progress=progress, memory=memory
        ) as session,
    ):
        yield OpenedTraces(session, found, folder, strict)


def _output(
    out: Place | None, found: Survey, overwrite: bool, session: SparkSession
) -> AbstractContextManager[OutputFolder | None]:
    """The place to write into, if one is wanted, as the session reaches it."""
    if not isinstance(out, Uri):
        return _local_output(out, found, overwrite)
    files = HadoopFiles(session)
    check_uri_output(files, out, [str(trace.folder) for trace in found.traces], overwrite)
    return uri_output(files, out)


@contextmanager
def _local_output(out: Place | None, found: Survey, overwrite: bool) -> Iterator[Path | None]:
    if isinstance(out, Path):
        check_output(out, [trace.folder for trace in found.traces], overwrite)
        with output_folder(out) as folder:
            yield folder
    else:
        yield None
