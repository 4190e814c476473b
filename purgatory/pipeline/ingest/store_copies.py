"""Copies of a job's inputs from a store: DuckDB has no S3 by itself, and reads the copies.

Ground rules: only files of the tables that are read are copied, some at a time; the copies go when
the job ends, however it ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock

import pyarrow as pa

from purgatory.pipeline.engines.progress import EngineProgress, show_progress
from purgatory.pipeline.errors import SessionError, TraceError
from purgatory.pipeline.ingest.stores import ListedPath
from purgatory.pipeline.ingest.trace_files import Part
from purgatory.pipeline.ingest.trace_set import TraceSet
from purgatory.pipeline.signals import defer_signals, exit_on_signal, working_folder

_AT_A_TIME = 16
_CHUNK_BYTES = 4 << 20


@contextmanager
def local_copies(
    trace_set: TraceSet, tables: Collection[str], progress: bool | None = False
) -> Iterator[TraceSet]:
    """The same traces, with each file of some tables on this machine. O(bytes).

    Args:
        trace_set: the traces, which may be of this machine already.
        tables: those that are read.
        progress: show the progress on standard error; None: on a terminal only.

    Raises:
        SessionError: there is no room for the copies.
        TraceError: a file can't be read to its end.
    """
    parts = [
        part
        for trace in trace_set.traces
        for table in tables
        for part in trace.files[table]
        if isinstance(part.path, ListedPath)
    ]
    if not parts:
        yield trace_set
        return
    with working_folder("purgatory-copies-") as folder:
        with exit_on_signal():
            copies = _Copier(parts, folder).copy_all(progress)
        copy_of = dict(zip(parts, copies, strict=True))
        traces = [
            replace(
                trace,
                files={
                    table: [copy_of.get(part, part) for part in trace.files[table]]
                    for table in trace.files
                },
            )
            for trace in trace_set.traces
        ]
        yield replace(trace_set, traces=traces)


class _Copier:
    """Copies files into a folder, and reports progress."""

    def __init__(self, parts: Sequence[Part], folder: Path) -> None:
        self._parts, self._folder = parts, folder
        paths = (part.path for part in parts)
        self._bytes = sum(path.size_bytes() or 0 for path in paths if isinstance(path, ListedPath))
        self._lock = Lock()
        self._done_bytes = 0
        self._stopped = Event()

    def copy_all(self, progress: bool | None) -> list[Part]:
        """The parts with their copies, in their order."""
        free = shutil.disk_usage(self._folder).free
        if self._bytes > free:
            raise SessionError(
                f"the files of the store have {self._bytes / 2**30:,.1f} GiB, and "
                f"{free / 2**30:,.1f} GiB are free in {self._folder.parent}"
            )
        with (
            show_progress("S3", self._progress, progress),
            ThreadPoolExecutor(_AT_A_TIME, "copy") as pool,
        ):
            try:
                with defer_signals():  # an unrecorded thread would not be joined
                    copies = pool.map(self._copy, range(len(self._parts)), self._parts)
                return list(copies)
            finally:
                self._stopped.set()

    def _copy(self, number: int, part: Part) -> Part:
        path = part.path
        ending = "".join(Path(path.name).suffixes[-2:])  # of CSV and compressed files
        copy = self._folder / f"{number}{ending}"
        try:
            with path.open("rb") as source, copy.open("wb") as target:
                while not self._stopped.is_set() and (chunk := source.read(_CHUNK_BYTES)):
                    target.write(chunk)
                    with self._lock:
                        self._done_bytes += len(chunk)
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise TraceError(f"{path}: can't be copied from its store: {reason}") from error
        return replace(part, copy=copy)

    def _progress(self) -> EngineProgress:
        done = self._done_bytes
        text = f"{done / 2**20:,.1f} of {self._bytes / 2**20:,.1f} MiB copied"
        return EngineProgress(text, done, self._bytes)
