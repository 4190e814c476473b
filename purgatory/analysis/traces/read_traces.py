"""Traces as data frames: the good rows of each table, the bad ones, and the runs.

traces = read_traces(session, ["build/demo/trace"])
traces.operations.groupBy("outcome").count().show()
traces.quarantine.show()
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from os import PathLike
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.analysis.spark.local_table import local_table
from purgatory.analysis.traces.column_mapping import (
    ColumnMapping,
    Source,
    parse_mapping,
    read_mapping,
)
from purgatory.analysis.traces.quarantine_table import QUARANTINE, first_error, quarantined
from purgatory.analysis.traces.survey import Survey, Trace, survey
from purgatory.analysis.traces.trace_rows import (
    TableRows,
    id_texts,
    require_distinct_ids,
    spark_columns,
)
from purgatory.analysis.uris.hadoop_files import HadoopFiles
from purgatory.analysis.uris.places import place
from purgatory.analysis.uris.reached_places import reached
from purgatory.trace.trace_schema import TABLES

RUNS = (
    "run_id string, scenario string, seed bigint, complete boolean, duration_ms bigint, "
    "producers array<struct<group: string, acks: bigint, idempotence: boolean, "
    "max_in_flight: bigint, retries: bigint, single_writer: boolean>>, "
    "consumers array<struct<group: string, assignment: string, isolation: string>>, folder string"
)
"""The columns of the table of runs; `producers` and `consumers` are null where nothing is known."""

_PRODUCER = ("group", "acks", "idempotence", "max_in_flight", "retries", "single_writer")
_CONSUMER = ("group", "assignment", "isolation")

Path_ = str | PathLike[str]
Mapping_ = ColumnMapping | Mapping[str, Any] | Path_ | None


@dataclass(frozen=True)
class TraceTables:
    """The tables of some traces. All are lazy but `runs`, which is small.

    The tables of a trace have the columns that `docs/traces.md` describes, and good rows only;
    `quarantine` has what is missing from them: rows in = rows out + quarantined.
    """

    found: Sequence[Trace]
    operations: DataFrame
    sends: DataFrame
    reads: DataFrame
    effects: DataFrame
    commits: DataFrame
    transactions: DataFrame
    quarantine: DataFrame
    runs: DataFrame

    def require_clean(self) -> None:
        """Read everything once, and be content only if nothing is in the quarantine.

        Raises:
            TraceError: the first that is, by file and line.
        """
        require_none(self.quarantine)


def require_none(quarantine: DataFrame) -> None:
    """Read a quarantine once, and be content only if nothing is in it.

    Raises:
        TraceError: the first that is, by file and line.
    """
    first = quarantine.orderBy("file", f.col("line").asc_nulls_first()).first()
    if first is not None:
        raise first_error(first["file"], first["line"], first["reason"], first["detail"])


def read_traces(
    session: SparkSession,
    paths: Path_ | Sequence[Path_],
    mapping: Mapping_ = None,
    *,
    strict: bool = False,
) -> TraceTables:
    """The tables of all traces in some folders.

    Looks at the folders and the parts' footers at once: O(parts). Rows are read when a result is
    asked for.

    Args:
        session: the caller's session.
        paths: a folder or several, each a trace or with traces in it at any depth; URIs too, of
            what the session reads, such as `s3a://bucket/runs`.
        mapping: where columns of other names are: a TOML file's path, or its content as data.
        strict: raise the first thing that would go into the quarantine; reads everything once.

    Raises:
        PipelineError: the session can't reach a URI.
        TraceError: there are no traces there, or a mapping that can't be; strict, anything bad, and
            two ids that are texts and became the same number.
    """
    roots = [paths] if isinstance(paths, str | PathLike) else paths
    places = reached(lambda: HadoopFiles(session), [place(os.fspath(root)) for root in roots])
    found = survey(places, _mapping(mapping), strict=strict)
    tables = tables_of(session, found)
    if strict:
        tables.require_clean()
        require_distinct_ids(id_texts(session, found.traces, TABLES))
    return tables


def tables_of(session: SparkSession, found: Survey) -> TraceTables:
    """The tables of what a survey found; lazy."""
    rows = {table: TableRows(session, found.traces, table) for table in TABLES}
    return TraceTables(
        found.traces,
        **{table: one.good() for table, one in rows.items()},
        quarantine=quarantine_of(session, found),
        runs=session.createDataFrame([_run(trace) for trace in found.traces], RUNS),
    )


def quarantine_of(
    session: SparkSession, found: Survey, tables: Collection[str] = tuple(TABLES)
) -> DataFrame:
    """What is bad in some tables of what a survey found, and in heads; lazy."""
    bad = [TableRows(session, found.traces, table).bad() for table in tables]
    refused = [quarantined(one) for one in found.refused if one.table in (None, *tables)]
    if refused:
        bad.append(local_table(session, refused, spark_columns(QUARANTINE)))
    return reduce(DataFrame.unionAll, bad)


def _mapping(given: Mapping_) -> ColumnMapping:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return read_mapping(Path(given))
    sources = [source for columns in given.values() for source in _values(columns)]
    if sources and all(isinstance(source, Source) for source in sources):
        return given
    return parse_mapping(given)


def _values(columns: Any) -> list[Any]:
    return list(columns.values()) if isinstance(columns, Mapping) else [columns]


def _run(trace: Trace) -> tuple[Any, ...]:
    return (
        trace.run_id,
        trace.scenario,
        trace.seed,
        trace.complete,
        trace.duration_ms,
        _settings(trace.producers, _PRODUCER),
        _settings(trace.consumers, _CONSUMER),
        str(trace.folder),
    )


def _settings(
    groups: Sequence[Mapping[str, object]] | None, names: Sequence[str]
) -> list[tuple[object, ...]] | None:
    return None if groups is None else [tuple(group.get(n) for n in names) for group in groups]
