"""The protocol of the engines, Spark and DuckDB, and the choice between them.

An engine opens traces for a job, computes its tables, and writes and returns their rows
(`OpenedTraces`). `engines.run` does the rest, the same for both.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from purgatory.pipeline.errors import SessionEndedError, SessionError

if TYPE_CHECKING:
    from purgatory.pipeline.engines.result_folder import OutputFolder
    from purgatory.pipeline.ingest.trace_set import RowCheck, Trace
    from purgatory.pipeline.jobs.registry import Job, View
    from purgatory.pipeline.result_rows import Order, Row

Engine = Literal["spark", "duckdb"]


def choose_engine(command: str, engine: Engine | None, master: str) -> Engine:
    """Return the requested engine; by default Spark, or DuckDB where Spark or Java is missing.

    A master that is not this machine is a request for Spark; one by Connect needs no Java here.
    The fallback is reported in a line on standard error, which names the command.
    """
    if engine is not None:
        return engine
    if not master.startswith("local"):
        return "spark"
    lacking = _lacking()
    if lacking is None or find_spec("duckdb") is None:
        return "spark"
    print(
        f"purgatory {command}: {lacking}, so DuckDB does it, in this process. Spark would bring "
        "clusters, and traces of any size.",
        file=sys.stderr,
    )
    return "duckdb"


def _lacking() -> str | None:
    """What Spark lacks here, or None."""
    if find_spec("pyspark") is None:
        return "PySpark is not installed"
    from purgatory.pipeline.engines.spark.java import find_java_home

    try:
        find_java_home(os.environ)
    except SessionEndedError:
        return None  # Java is installed: the start of Spark reports the failure
    except SessionError:
        return "Spark finds no Java 17 or later"
    return None


def total_memory_bytes() -> int:
    """The memory of this machine, or the limit of this container if that is lower."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no container, or one without a bound
        whole = min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    return whole


# Options and results that both engines share.


@dataclass(frozen=True)
class RunOptions:
    """How a job runs, on either engine.

    Attributes:
        master: the Spark master; DuckDB has none.
        overwrite: replace earlier results.
        progress: show progress on standard error; None: only on a terminal.
        mapping: the file that maps columns of other names.
        strict: fail at a bad row or file; otherwise it is quarantined and counted.
        memory: bytes that DuckDB may use before it spills to disk, or the heap of Spark's driver;
            None: a share of the memory of the machine or container, or Spark's own setting.
    """

    master: str = "local[*]"
    overwrite: bool = False
    progress: bool | None = False
    mapping: Path | None = None
    strict: bool = False
    memory: int | None = None


class OpenedTraces(Protocol):
    """Traces that an engine has opened for a job, and the folder for the results.

    Each engine has a context manager `opened_traces`, which returns one, and stops the engine at
    the end of the block. Results are complete only after the block.
    """

    @property
    def traces(self) -> Sequence[Trace]:
        """The runs."""

    @property
    def folder(self) -> OutputFolder | None:
        """The folder to write into; None: write nothing."""

    def check(self, job: Job) -> RowCheck:
        """Read the job's inputs, find bad rows, and write the quarantine if the job has one.

        Raises:
            TraceError: strict, and a row or file is bad.
        """

    def compute(self, job: Job, options: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Compute the job's tables, which exist within the block. Call `check` before.

        Raises:
            ValueError: an option has an invalid value.
        """

    def write(self, table: str, order: Order) -> None:
        """Write a table into the folder, sorted, as one file of Parquet."""

    def rows(self, view: View, order: Order, runs: Sequence[str] | None) -> list[Row]:
        """The ordered rows of a view for some runs; `most` and one more if it `is_cut`."""

    def with_texts(self, witnesses: Sequence[Row]) -> Sequence[Row]:
        """Rows of `witnesses` with text ids restored; these are also written to the table `ids`."""
