"""The folder of results, local or at a URI: written beside its target and moved when complete.

Ground rules: the target keeps its content until everything is written, and a failure leaves nothing
behind. Signals wait for the move. Only a folder that contains results and nothing else is ever
replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.pipeline.errors import OutputError
from purgatory.pipeline.ingest.stores import StoreError, StoreFiles, TracePath, Uri
from purgatory.pipeline.jobs.registry import ANALYZE, JOBS
from purgatory.pipeline.signals import defer_signals, record_output, working_folder


@dataclass(frozen=True)
class UriFolder:
    """A folder or file of results at a URI, with the methods of `Path` that writing needs."""

    files: StoreFiles
    text: str

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> UriFolder:
        return UriFolder(self.files, f"{self.text}/{name}")

    def write_bytes(self, content: bytes) -> None:
        """Create the file."""
        self.files.write(self.text, content)

    def write_text(self, content: str, encoding: str) -> None:
        """Create a text file."""
        self.write_bytes(content.encode(encoding))


OutputFolder = Path | UriFolder
"""The folder of results."""


def spark_output_path(folder: Path | UriFolder) -> str:
    """The path as Spark takes it for writing: local files have a scheme, too."""
    return f"file:{folder}" if isinstance(folder, Path) else str(folder)


# A local folder, and the tables in it.


REPORT = "report.html"
COMPLETE = "_SUCCESS"
"""The file that marks complete results at a URI, as Spark and Hadoop name it."""

TABLES = (*ANALYZE.outputs, "ids", "runs", "quarantine")
"""The tables of an analysis."""

PARQUET_FILE = "part-00000.parquet"
"""The one file that has the rows of a table, in its folder."""

PARQUET_FILES = {name: f"{name}/{PARQUET_FILE}" for name in TABLES}
"""The path of each table in the folder."""

_RESULTS = {REPORT, COMPLETE, *TABLES}.union(*(job.outputs for job in JOBS.values()))


def check_output(out: Path, inputs: Sequence[TracePath], overwrite: bool) -> None:
    """Check that results can be written to a folder.

    Args:
        out: the folder to create.
        inputs: the traces' folders, with which the results may not overlap.
        overwrite: replace earlier results.

    Raises:
        OutputError: the folder has other content, or overlaps with a trace.
    """
    target = out.resolve()
    for folder in (path.resolve() for path in inputs if isinstance(path, Path)):
        if target == folder or target in folder.parents or folder in target.parents:
            raise OutputError(f"--out {out} and the trace {folder} overlap; name another folder")
    check_entries(str(out), names_in(out), overwrite)


def names_in(out: Path) -> set[str]:
    """The names in an output folder; none where it is still to be made.

    Raises:
        OutputError: it is a file, or can't be read.
    """
    try:
        if not out.exists():
            return set()
        if not out.is_dir():
            raise OutputError(f"--out {out}: is a file; name a folder to be made")
        return {entry.name for entry in out.iterdir()}
    except OSError as error:
        raise OutputError(f"--out {out}: can't be read: {error.strerror}") from error


def refuse_foreign(out: str, entries: Collection[str], known: Set[str], what: str) -> None:
    """Raise OutputError if an output folder has something else than results of `what`."""
    foreign = sorted(set(entries) - known)
    if foreign:
        raise OutputError(
            f"--out {out}: holds {foreign[0]!r}, which is no result of {what}; name another folder"
        )


def check_entries(out: str, entries: Collection[str], overwrite: bool) -> None:
    """Check the entries of an existing output folder.

    Raises:
        OutputError: there is another file than results, or results without `overwrite`.
    """
    refuse_foreign(out, entries, _RESULTS, "an analysis")
    if entries and not overwrite:
        raise OutputError(f"--out {out}: has results already; allow --overwrite or name another")


@contextmanager
def output_folder(out: Path) -> Iterator[Path]:
    """A folder to write results into, which is moved to `out` at the end of the `with` block.

    Raises:
        OutputError: the folder can't be created, or not be moved.
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


def write_table(rows: pa.Table, folder: OutputFolder) -> None:
    """Write a table as one Parquet file in its own folder.

    Raises:
        OutputError: there is no room for it.
    """
    content = pa.BufferOutputStream()
    pq.write_table(rows, content, compression="zstd")
    with writing(folder):
        if isinstance(folder, Path):
            folder.mkdir()
        (folder / PARQUET_FILE).write_bytes(content.getvalue().to_pybytes())


@contextmanager
def writing(path: OutputFolder) -> Iterator[None]:
    """Have an error of the file system name the path that is written, and the cause."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise OutputError(f"{path}: can't be written: {error.strerror}") from error


# A folder at a URI.
#
# HDFS and ABFS move a folder atomically. S3 copies its files one by one, so for a moment the target
# is incomplete; readers have to check for the file `_SUCCESS`, which is deleted first and written
# last. A process that is killed leaves one folder beside the target, `.NAME-` and some digits.


def check_uri_output(files: StoreFiles, out: Uri, inputs: list[str], overwrite: bool) -> None:
    """Check that results can be written to a URI, as `check_output` does.

    Raises:
        OutputError: the folder has other content, or overlaps with a trace.
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
    """A folder to write results into, which is moved to `out` at the end of the `with` block.

    Raises:
        OutputError: it can't be created, written to, or moved.
    """
    parent, _, name = str(out).rstrip("/").rpartition("/")
    working = f"{parent}/.{name}-{uuid4().hex[:8]}"
    try:
        with _output_errors(out):
            files.write(f"{working}/begun", b"")  # fail before anything is computed
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
