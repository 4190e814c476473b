"""The page that a stream keeps up to date in a file.

Ground rules
------------
* The queries' threads add results; the thread that looks after the queries writes. A lock holds
  what they share, for as long as rows are added or the page's text is made.
* The file is whole at each moment: a new page is made beside it and takes its place. One that a
  kill left beside it is replaced by the next.
* Sums begin with the results that are in Parquet, so after a restart the page goes on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from purgatory.analysis.errors import OutputError, PipelineError
from purgatory.live.live_jobs import LiveJobs
from purgatory.live.stream_page import RUNNING, stream_page
from purgatory.live.told_so_far import ToldSoFar
from purgatory.live.watermark import watermark_us

_TABLES = ("waits", "order", "aside")


class StreamReport:
    """The page of one stream.

    Args:
        file: where it is.
        name: what is followed, as the page says it.
        jobs: what the stream does.
    """

    def __init__(self, file: Path, name: str, jobs: LiveJobs) -> None:
        self._file = file
        self._name = name
        self._jobs = jobs
        self._lock = threading.Lock()
        self._told = ToldSoFar(jobs.window_us)
        self._until_us: dict[str, int] = {}
        self._is_new = True

    def add(self, table: str, rows: pa.Table) -> None:
        """Take rows of the results: of ``waits``, ``order`` or ``aside``. O(rows)."""
        with self._lock:
            self._told.add(table, rows)
            self._is_new = True

    def batch_done(self, query: str, progress: Mapping[str, Any], _batch: int) -> None:
        """Note how far a query is; arguments as of `LiveMetrics.batch_done`."""
        time_us = watermark_us(progress)
        with self._lock:
            if time_us is not None and time_us > self._until_us.get(query, 0):
                self._until_us[query] = time_us
                self._is_new = True

    def refresh(self) -> None:
        """Write the page if there is something new; as much work however much was told.

        Raises:
            OutputError: the file can't be written.
        """
        if self._is_new:
            self._write(RUNNING)

    @contextmanager
    def kept(self, stop: threading.Event) -> Iterator[None]:
        """Write the page now, and at the end of the block with how that ended.

        Args:
            stop: whether it is set tells a stream that was stopped from one that is at its end.

        Raises:
            OutputError: the file can't be written.
        """
        self._write(RUNNING)
        try:
            yield
        except PipelineError as error:
            with suppress(OutputError):  # the first failure is told
                self._write(f"failed: {error}")
            raise
        self._write("stopped" if stop.is_set() else "ended: all is read that was there")

    def _write(self, state: str) -> None:
        with self._lock:
            self._is_new = False
            text = stream_page(
                self._name,
                self._told,
                self._until_us,
                state=state,
                written_us=time.time_ns() // 1_000_000_000 * 1_000_000,
                parquet=self._parquet(),
            )
        beside = self._file.with_name(f".{self._file.name}.part")
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(self._file)
        except OSError as error:
            raise OutputError(f"--report {self._file}: can't be written: {error}") from error

    def _parquet(self) -> dict[str, str]:
        """The folders of the tables that are there, as the page finds them."""
        folders = {name: self._jobs.out / name for name in _TABLES}
        beside = self._file.parent.resolve()
        return {
            name: f"{os.path.relpath(folder.resolve(), beside)}/"
            for name, folder in folders.items()
            if folder.is_dir()
        }
