"""The protocol of the engines, Spark and DuckDB, and the choice between them.

An engine reads traces (`TraceReader`), and runs a chain of SQL (`SqlEngine`). All else is the same
for both.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, Protocol

from purgatory.pipeline.errors import SessionEndedError, SessionError

if TYPE_CHECKING:
    import pyarrow as pa

    from purgatory.pipeline.engines.result_folder import OutputFolder
    from purgatory.pipeline.ingest.column_mapping import GivenMapping
    from purgatory.pipeline.ingest.trace_set import RowCheck
    from purgatory.pipeline.jobs.chain import Statement

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
    """The package or program that Spark lacks here, in words, or None."""
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


# Options and results that both engines share.


@dataclass(frozen=True)
class RunOptions:
    """The options of a run, on either engine.

    Attributes:
        master: the Spark master; DuckDB has none.
        overwrite: replace earlier results.
        progress: show progress on standard error; None: only on a terminal.
        mapping: of columns of other names, as data or as the path of a file.
        strict: fail at a bad row or file; otherwise it is quarantined and counted.
        memory: bytes that DuckDB may use before it spills to disk, or the heap of Spark's driver;
            None: a share of the memory of the machine or container, or Spark's own setting.
    """

    master: str = "local[*]"
    overwrite: bool = False
    progress: bool | None = False
    mapping: GivenMapping = None
    strict: bool = False
    memory: int | None = None


class SqlEngine(Protocol):
    """The engine of a job's SQL: a DuckDB connection or a Spark session."""

    def run(self, statements: Iterable[Statement]) -> None:
        """Run a chain: make its views, and compute its tables."""

    def make_table(
        self, name: str, columns: Mapping[str, str], rows: Sequence[tuple[object, ...]] = ()
    ) -> None:
        """Make or replace a table of few rows.

        Args:
            name: the name of the table.
            columns: the types of the columns, as Spark names them.
            rows: the values, in the order of the columns.
        """

    def query(self, query: str) -> pa.Table:
        """The result of a query, which is small."""


class TraceReader(Protocol):
    """Reads the traces of a job into its engine, as tables with all columns of the schema."""

    def read(self, tables: Sequence[str], *, count: bool) -> RowCheck:
        """Make the tables of the good rows.

        Args:
            tables: those that the job reads.
            count: whether the check has the numbers of good rows.

        Raises:
            TraceError: strict, and a row or file is bad.
        """

    def write_quarantine(self, folder: OutputFolder) -> None:
        """Write the bad rows and files into the folder `quarantine`."""

    def read_id_texts(self) -> None:
        """Make the table `id_texts`: `number` and `text` of ids that are texts."""
