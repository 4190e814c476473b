"""The traces in some folders, opened for a job: a Spark session, and a folder to write into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from purgatory.analysis.result_folder import check_output, output_folder
from purgatory.analysis.running import RunningAnywhere
from purgatory.analysis.spark.session import MOST_SMALL_ROWS, spark_session
from purgatory.analysis.traces.column_mapping import read_mapping
from purgatory.analysis.traces.survey import Survey, survey
from purgatory.analysis.uris.hadoop_files import HadoopFiles
from purgatory.analysis.uris.places import Place, Uri
from purgatory.analysis.uris.reached_places import reached
from purgatory.analysis.uris.uri_folder import OutputFolder
from purgatory.analysis.uris.uri_results import check_uri_output, uri_output


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
) -> Iterator[OpenedTraces]:
    """All traces in some folders, in a session of their own; the results count once all are there.

    Args:
        roots: folders that are a trace each, or contain traces; URIs of such as well.
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
    columns = None if mapping is None else read_mapping(mapping)
    local = [one for one in roots if isinstance(one, Path)]
    if len(local) < len(roots) or isinstance(out, Uri):
        # What is to be done can be told only by Spark's file systems.
        with spark_session(master, progress=progress) as session:
            found = survey(reached(session, roots), columns, strict=strict)
            with _output(out, found, overwrite, session) as folder:
                yield OpenedTraces(session, found, folder, strict)
        return
    found = survey(local, columns, strict=strict)
    rows = sum(trace.rows[table] for trace in found.traces for table in tables)
    with (
        _output(out, found, overwrite) as folder,
        spark_session(master, small=rows <= MOST_SMALL_ROWS, progress=progress) as session,
    ):
        yield OpenedTraces(session, found, folder, strict)


@contextmanager
def _output(
    out: Place | None, found: Survey, overwrite: bool, session: SparkSession | None = None
) -> Iterator[OutputFolder | None]:
    """The folder to write into, if one is wanted; at a URI, the session has to reach it."""
    folders = [trace.folder for trace in found.traces]
    if isinstance(out, Uri):
        assert session is not None, "for a URI there is a session"
        files = HadoopFiles(session)
        check_uri_output(files, out, [str(one) for one in folders], overwrite)
        with uri_output(files, out) as remote:
            yield remote
    elif out is not None:
        check_output(out, folders, overwrite)
        with output_folder(out) as local:
            yield local
    else:
        yield None
