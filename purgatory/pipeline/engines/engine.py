"""What an engine is, and which one does a job: Spark, or DuckDB where Spark can't.

An engine opens traces for a job, computes its tables, and writes and shows their rows
(`OpenedTraces`); `engines.run` does the rest, the same for both.
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
    from purgatory.pipeline.ingest.trace_set import Trace
    from purgatory.pipeline.jobs.registry import Job, View
    from purgatory.pipeline.result_rows import Order, Row

Engine = Literal["spark", "duckdb"]


def choose_engine(command: str, engine: Engine | None) -> Engine:
    """The engine that was asked for; else Spark, or DuckDB where Spark or Java is missing.

    The latter is said in a line on standard error.

    Args:
        command: who asks, for that line.
        engine: None leaves the choice.
    """
    if engine is not None:
        return engine
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
        return None  # it is there: the start of Spark tells what became of it
    except SessionError:
        return "Spark finds no Java 17 or later"
    return None


def total_memory_bytes() -> int:
    """The memory of this machine, or of this container if that has less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no container, or one without a bound
        whole = min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    return whole


# How a job on traces runs, whichever engine does it.


@dataclass(frozen=True)
class RunOptions:
    """How a job runs.

    Attributes:
        master: the Spark master; DuckDB has none.
        overwrite: replace earlier results.
        progress: show on standard error how far it is; None does so on a terminal only.
        mapping: the file that says where columns of other names are.
        strict: stop at a bad row or file; otherwise it goes into the quarantine and is counted.
        memory: how many bytes DuckDB may take before it uses the disk, or Spark's driver gets;
            None: a share of what the machine or the container has, or as Spark is set up.
    """

    master: str = "local[*]"
    overwrite: bool = False
    progress: bool | None = False
    mapping: Path | None = None
    strict: bool = False
    memory: int | None = None


class OpenedTraces(Protocol):
    """The traces in some folders as an engine has opened them for a job, and where to write.

    Each engine has a function `opened_traces` that gives one, and stops what it started at the end
    of the block; the results count once all are there.
    """

    @property
    def traces(self) -> Sequence[Trace]:
        """The runs."""

    @property
    def folder(self) -> OutputFolder | None:
        """The folder to write into; None where nothing is written."""

    def check(self, job: Job) -> None:
        """Read what the job reads, find what is bad, and write it as the job has it.

        Raises:
            TraceError: strict, and something is bad.
        """

    def quarantine(self) -> list[Row]:
        """How many `rows` and `files` are bad, by `table` and `reason`."""

    def bad_rows(self) -> Mapping[str, int]:
        """How many rows of which run are left out."""

    def good_rows(self) -> Mapping[str, Mapping[str, int]]:
        """The number of good rows by table and run."""

    def last_ends_us(self) -> Mapping[str, int]:
        """When the last operation of each run that has some ended."""

    def compute(self, job: Job, options: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Have the job's tables within the block; `check` came before.

        Raises:
            ValueError: an option has a value that it can't have.
        """

    def write(self, table: str, order: Order) -> None:
        """Write a table into the folder, sorted, as one file of Parquet."""

    def rows(self, view: View, order: Order, runs: Sequence[str] | None) -> list[Row]:
        """The rows of a view in order, of some runs; one more than `most` if it `is_cut`."""

    def with_texts(self, witnesses: Sequence[Row]) -> Sequence[Row]:
        """Rows of `witnesses` with the ids that are texts, which go into the table `ids`, too."""
