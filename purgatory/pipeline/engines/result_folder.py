"""The folder of results, here or at a URI: made beside its place, and moved there when whole.

Ground rules: until everything is written the place keeps what it had, and a failure leaves nothing
behind. Signals wait for the move. Only a folder that holds results and nothing else is ever
replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.engines.termination import defer_signals, record_output, working_folder
from purgatory.pipeline.errors import OutputError
from purgatory.pipeline.ingest.stores import StoreError, StoreFiles, TracePath, Uri
from purgatory.pipeline.jobs.registry import ANALYZE, JOBS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class UriFolder:
    """A folder or file of results at a URI, with those methods of `Path` that writing needs."""

    def __init__(self, files: StoreFiles, text: str) -> None:
        self._files, self._text = files, text

    def __str__(self) -> str:
        return self._text

    def __truediv__(self, name: str) -> UriFolder:
        return UriFolder(self._files, f"{self._text}/{name}")

    def mkdir(self) -> None:
        """Make it."""
        self._files.make_folder(self._text)

    def write_bytes(self, content: bytes) -> None:
        """Make it a file."""
        self._files.write(self._text, content)

    def write_text(self, content: str, encoding: str) -> None:
        """Make it a file of text."""
        self.write_bytes(content.encode(encoding))


OutputFolder = Path | UriFolder
"""Where results are written into."""


def spark_output_path(folder: Path | UriFolder) -> str:
    """A place as Spark takes it to write there: local files have a scheme too."""
    return f"file:{folder}" if isinstance(folder, Path) else str(folder)


# A folder of this machine, and the tables in it.


Order = Sequence["str | Column"]
"""The columns by which the rows of a table are sorted, each from its least value on."""

REPORT = "report.html"
COMPLETE = "_SUCCESS"
"""The file that says, at a URI, that the results are whole, as Spark and Hadoop name it."""

TABLES = (*ANALYZE.outputs, "ids", "runs", "quarantine")
"""The tables of an analysis."""

PARQUET_FILE = "part-00000.parquet"
"""The one file that has the rows of a table, in its folder."""

PARQUET_FILES = {name: f"{name}/{PARQUET_FILE}" for name in TABLES}
"""Where in the folder the rows of each table are."""

_RESULTS = {REPORT, COMPLETE, *TABLES}.union(*(job.outputs for job in JOBS.values()))


def check_output(out: Path, inputs: Sequence[TracePath], overwrite: bool) -> None:
    """Refuse a place for the results that holds something else.

    Args:
        out: the folder to be made.
        inputs: the traces' folders, which the results may not replace or get in among.
        overwrite: whether earlier results there may be replaced.

    Raises:
        OutputError: saying what is there and what to do.
    """
    target = out.resolve()
    for folder in (path.resolve() for path in inputs if isinstance(path, Path)):
        if target == folder or target in folder.parents or folder in target.parents:
            raise OutputError(f"--out {out} and the trace {folder} overlap; name another folder")
    if not target.exists():
        return
    if not target.is_dir():
        raise OutputError(f"--out {out}: is a file; name a folder to be made")
    check_entries(str(out), {entry.name for entry in target.iterdir()}, overwrite)


def check_entries(out: str, entries: Collection[str], overwrite: bool) -> None:
    """Refuse a folder that holds other things than results, or results that are to be kept.

    Args:
        out: the folder.
        entries: the names of what is in it.
        overwrite: whether results may be replaced.

    Raises:
        OutputError: saying what is there and what to do.
    """
    if not entries:
        return
    foreign = sorted(set(entries) - _RESULTS)
    if foreign:
        raise OutputError(
            f"--out {out}: holds {foreign[0]!r}, which is no result of an analysis; name another "
            "folder"
        )
    if not overwrite:
        raise OutputError(f"--out {out}: has results already; allow --overwrite or name another")


@contextmanager
def output_folder(out: Path) -> Iterator[Path]:
    """A folder to write results into, which takes the place `out` at the end of the `with` block.

    Raises:
        OutputError: the folder can't be made there, or not be moved there.
    """
    target = out.resolve()
    with ExitStack() as stack:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            working = stack.enter_context(working_folder(f".{target.name}-", target.parent))
            working.chmod(
                target.parent.stat().st_mode
            )  # a temporary folder is closed to all others
        except OSError as error:
            raise OutputError(
                f"--out {out}: can't be made: {error.filename}: {error.strerror}"
            ) from error
        results = working / "results"
        results.mkdir()
        yield results
        with defer_signals():
            _move(results, target, working / "replaced")
            record_output(out)


def _move(results: Path, target: Path, backup: Path) -> None:
    try:
        if target.exists():
            target.rename(backup)
        results.rename(target)
    except OSError as error:
        if backup.exists() and not target.exists():
            backup.rename(target)
        raise OutputError(
            f"--out {target}: can't be replaced: {error.filename}: {error.strerror}"
        ) from error


def write_sorted(table: DataFrame, folder: OutputFolder, order: Order) -> pa.Table:
    """Write a table of results as one sorted file of Parquet in a folder of its own.

    Its rows are few beside those of the traces; nothing that grows with these is written so.

    Returns:
        The rows that were written.
    """
    rows = sorted_rows(table, order)
    write_table(rows, folder)
    return rows


def write_table(rows: pa.Table, folder: OutputFolder) -> None:
    """Write a table as one file of Parquet in a folder of its own."""
    folder.mkdir()
    file = folder / PARQUET_FILE
    if isinstance(file, Path):
        pq.write_table(rows, file, compression="zstd")
    else:
        content = pa.BufferOutputStream()
        pq.write_table(rows, content, compression="zstd")
        file.write_bytes(content.getvalue().to_pybytes())


def sorted_rows(table: DataFrame, order: Order) -> pa.Table:
    """A small table, computed once and sorted here as Spark sorts: each value after null."""
    import pyarrow.compute as pc  # only here: DuckDB sorts by itself

    names = [column if isinstance(column, str) else f"_order_{n}" for n, column in enumerate(order)]
    order_columns = [
        column.alias(name)
        for column, name in zip(order, names, strict=True)
        if not isinstance(column, str)
    ]
    rows = table.select("*", *order_columns).toArrow()
    columns = [column for name in names for column in (pc.is_valid(rows[name]), rows[name])]
    keys = pa.table(columns, names=list(map(str, range(len(columns)))))
    indices = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    return rows.select(table.columns).take(indices)


# A folder at a URI.
#
# HDFS and ABFS move a folder in one step. S3 copies its files one by one, so for a moment the
# place has a part of them; whoever must not read that looks for the file `_SUCCESS`, which goes
# first and comes last. What is left behind by a process that was killed is one folder beside the
# place, `.NAME-` and some digits.


def check_uri_output(files: StoreFiles, out: Uri, inputs: list[str], overwrite: bool) -> None:
    """Refuse a place for the results that holds something else, as `check_output` does.

    Raises:
        OutputError: saying what is there and what to do.
    """
    with _output_errors(out):
        status = files.status(str(out))
        target = (str(out) if status is None else status[0]).rstrip("/")
        if target.count("/") < 3:
            raise OutputError(f"--out {out}: is a whole store; name a folder in it")
        for folder in inputs:
            if f"{folder}/".startswith(f"{target}/") or f"{target}/".startswith(f"{folder}/"):
                raise OutputError(
                    f"--out {out} and the trace {folder} overlap; name another folder"
                )
        if status is None:
            return
        if not status[1]:
            raise OutputError(f"--out {out}: is a file; name a folder to be made")
        check_entries(str(out), set(files.names_in(target)), overwrite)


@contextmanager
def uri_output_folder(files: StoreFiles, out: Uri) -> Iterator[UriFolder]:
    """A folder to write results into, which takes the place `out` at the end of the `with` block.

    Raises:
        OutputError: it can't be made there, be written to, or be moved there.
    """
    parent, _, name = str(out).rstrip("/").rpartition("/")
    working = f"{parent}/.{name}-{uuid4().hex[:8]}"
    try:
        with _output_errors(out):
            files.write(f"{working}/begun", b"")  # before anything is computed in vain
            yield UriFolder(files, f"{working}/results")
            with defer_signals():
                _move_to_uri(files, f"{working}/results", f"{parent}/{name}", f"{working}/replaced")
                record_output(out)
    finally:
        files.delete_at_the_end(working)


def _move_to_uri(files: StoreFiles, results: str, target: str, backup: str) -> None:
    marker = f"{target}/{COMPLETE}"
    was_complete = files.status(marker) is not None
    files.delete(marker)
    replaced = files.status(target) is not None
    is_free = not replaced
    try:
        if replaced:
            files.rename(target, backup)
            is_free = True
        files.rename(results, target)
    except StoreError:
        with suppress(StoreError):
            if is_free:
                files.delete(target)  # where a store copies, a part of the results
            if is_free and replaced:
                files.rename(backup, target)
            if was_complete:
                files.write(marker, b"")
        raise
    files.write(marker, b"")


@contextmanager
def _output_errors(out: Uri) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise OutputError(f"--out {out}: {error}") from error
