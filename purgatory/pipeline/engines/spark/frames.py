"""The jobs as functions from data frames to data frames, for notebooks and programs.

Each runs the SQL of its job in the session of its frames, whose own views and settings stay as they
are. A table that several of its statements read is computed at once; the result is lazy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline.engines.spark.connect import local_table
from purgatory.pipeline.engines.spark.sql_engine import SparkEngine, sql_settings
from purgatory.pipeline.ingest.spark_reader import spark_columns
from purgatory.pipeline.ingest.trace_set import Trace
from purgatory.pipeline.jobs.audit.anomalies import (
    SPLIT,
    SPLIT_US,
    WITNESSES,
)
from purgatory.pipeline.jobs.audit.audit_chain import (
    AUDIT_SETTINGS,
    audit_chain,
    audit_settings,
)
from purgatory.pipeline.jobs.audit.client_settings import Configuration
from purgatory.pipeline.jobs.chain import Statement, renamed
from purgatory.pipeline.jobs.clients import attempts_chain, latencies_chain, throughput_chain
from purgatory.pipeline.jobs.occupancy import (
    hot_keys_chain,
    key_occupancy_chain,
    occupancy_chain,
    peaks_chain,
)
from purgatory.pipeline.jobs.result_orders import MOST_KEYS, Exactness
from purgatory.pipeline.jobs.run_spans import FAULTS, SPANS, fault_rows, span_rows
from purgatory.pipeline.jobs.waits import (
    distribution_chain,
    expiry_chain,
    slowest_chain,
    waits_chain,
)
from purgatory.trace.trace_schema import NULLABLE, TABLES

_numbers = count(1)


def run_chain(
    inputs: Mapping[str, DataFrame], statements: Sequence[Statement], results: Sequence[str]
) -> list[DataFrame]:
    """Run a chain on frames, which are its tables of these names, and return some of its tables."""
    session = next(iter(inputs.values())).sparkSession
    prefix = f"purgatory_{next(_numbers)}_"
    names = {name: prefix + name for name in (*inputs, *(one.name for one in statements))}
    with sql_settings(session):
        engine = SparkEngine(session, None)
        try:
            for name, table in inputs.items():
                _all_columns(name, table).createOrReplaceTempView(names[name])
            engine.run(renamed(statements, names))
            return [session.table(names[name]) for name in results]
        finally:
            for name in names.values():
                session.catalog.dropTempView(name)


def _all_columns(name: str, table: DataFrame) -> DataFrame:
    """A table of a trace with the columns that may be null, and that it lacks."""
    kinds = TABLES.get(name, {})
    missing = [
        f"cast(null as {kinds[column]}) as `{column}`"
        for column in kinds
        if column in NULLABLE[name] and column not in table.columns
    ]
    return table.selectExpr("*", *missing) if missing else table


def waits(
    operations: DataFrame,
    *,
    window_us: int | None = None,
    by_topic: bool = False,
    percentiles: Exactness = "exact",
) -> DataFrame:
    """The table `waits`: a row per run, window, purgatory, kind, topic and outcome.

    O(operations), and a sort of the different waits of each row of the result.

    Args:
        operations: the trace's table of that name.
        window_us: the length of the windows of time, in microseconds; each row is then of the
            operations that started in one of them. None: the whole run.
        by_topic: also rows per topic. An operation on several topics counts in the rows of each,
            and once in those over all topics; one without keys counts under a topic of null.
        percentiles: `approximate` is up to 0.1 % too small, and faster with many long waits.

    Raises:
        ValueError: `window_us` is not positive, or `percentiles` is invalid.
    """
    chain = waits_chain(window_us, percentiles, by_topic=by_topic)
    return run_chain({"operations": operations}, chain, ["waits"])[0]


def slowest(operations: DataFrame, number: int = 10) -> DataFrame:
    """The table `slowest`: for each run and purgatory, the operations with the longest waits.

    Of equal waits, the earlier operation comes first. Pending ones have their waits so far.
    O(operations): each task keeps its own slowest before the shuffle.

    Args:
        operations: the trace's table of that name.
        number: per run and purgatory, at least 1.

    Raises:
        ValueError: a number below 1.
    """
    return run_chain({"operations": operations}, slowest_chain(number), ["slowest"])[0]


def distribution(operations: DataFrame) -> DataFrame:
    """The table `distribution`: a row per run, purgatory, outcome and bin with operations in it.

    A bin has waits from `low_us` to below `high_us`. Immediate operations, which did not wait, and
    pending ones, whose waits are unknown, are left out.
    """
    return run_chain({"operations": operations}, distribution_chain(), ["distribution"])[0]


def expiry(operations: DataFrame, most_keys: int = MOST_KEYS) -> DataFrame:
    """The table `expiry`: a row per run, purgatory, broker and key that operations waited under.

    A key of null stands for all operations of the broker, the only row in a trace without keys. An
    operation under several keys counts under each. Immediate and pending operations do not count.

    Args:
        operations: the trace's table of that name.
        most_keys: the number of keys per run, those with the most expired operations.
    """
    return run_chain({"operations": operations}, expiry_chain(most_keys), ["expiry"])[0]


def occupancy(operations: DataFrame, spans: DataFrame) -> DataFrame:
    """The table `occupancy`: a row per run, purgatory, broker and bucket of time.

    A broker of null stands for all brokers. Every bucket from 0 to the end of the run has a row,
    also without parked operations. O(operations), and a sort of the starts and ends in each bucket.

    Args:
        operations: the trace's table of that name.
        spans: `run_id`, `end_us` (where the run ends) and `width_us` (of its buckets), a row per
            run; small.
    """
    inputs = {"operations": operations, "spans": spans}
    return run_chain(inputs, occupancy_chain(), ["occupancy"])[0]


def hot_keys(operations: DataFrame, spans: DataFrame, number: int = 10) -> DataFrame:
    """The table `hot_keys`: for each run and purgatory, the keys with the most parked operations.

    Args:
        operations, spans: as `occupancy` takes them.
        number: how many keys of each run and purgatory, at least 1.

    Raises:
        ValueError: a number below 1.
    """
    inputs = {"operations": operations, "spans": spans}
    return run_chain(inputs, hot_keys_chain(number), ["hot_keys"])[0]


def occupancy_of_keys(operations: DataFrame, spans: DataFrame, keys: DataFrame) -> DataFrame:
    """The table `key_occupancy`: the number of parked operations of some keys over time.

    Args:
        operations, spans: as `occupancy` takes them.
        keys: `run_id`, `purgatory`, `key`, such as the table of `hot_keys`.
    """
    inputs = {"operations": operations, "spans": spans, "hot_keys": keys}
    return run_chain(inputs, key_occupancy_chain(), ["key_occupancy"])[0]


def peaks(
    operations: DataFrame,
    occupancy: DataFrame,
    spans: DataFrame,
    faults: DataFrame | None = None,
    number: int = 3,
) -> DataFrame:
    """The table `peaks`: for each run and purgatory, the highest peaks and what was parked then.

    O(operations): it looks at all of them once more, and sorts those in the buckets of the peaks.

    Args:
        operations, spans: as `occupancy` takes them.
        occupancy: the table that the function of that name makes of them.
        faults: `run_id`, `kind`, `broker`, `from_us` and `until_us` (null: to the end of the run),
            a row per fault; few. None where nothing is known of faults.
        number: how many peaks of each run and purgatory, at least 1.

    Raises:
        ValueError: a number below 1.
    """
    none = local_table(operations.sparkSession, [], spark_columns(FAULTS))
    inputs = {
        "operations": operations,
        "occupancy": occupancy,
        "spans": spans,
        "faults": none if faults is None else faults,
    }
    made = run_chain(inputs, peaks_chain(number), ["peaks"])[0]
    if faults is None:
        return made.selectExpr("* except (faults)", "cast(null as array<string>) as faults")
    return made


def latencies(sends: DataFrame) -> DataFrame:
    """The table `latencies`: a row per run, group of producers and span.

    An attempt counts for each record in it. A span whose times the trace lacks has no row.
    """
    return run_chain({"sends": sends}, latencies_chain(), ["latencies"])[0]


def attempts(sends: DataFrame, reads: DataFrame) -> DataFrame:
    """The table `attempts`: a row per run, group of producers, outcome and error of an attempt.

    `all` stands for all outcomes and `*` for all errors; a record of which attempts had several
    outcomes counts once in each of them, and once in the row over all.
    """
    return run_chain({"sends": sends, "reads": reads}, attempts_chain(), ["attempts"])[0]


def throughput(sends: DataFrame, reads: DataFrame, windows: DataFrame) -> DataFrame:
    """The table `throughput`: a row per run, window of time, kind of client, group and partition.

    Args:
        sends, reads: the trace's tables of these names.
        windows: `run_id` and `window_us`, the width of its windows; the runs to compute; few.
    """
    inputs = {"sends": sends, "reads": reads, "windows": windows}
    return run_chain(inputs, throughput_chain(), ["throughput"])[0]


def run_spans(session: SparkSession, traces: Sequence[Trace], operations: DataFrame) -> DataFrame:
    """The spans of runs, as `occupancy` takes them: `run_id`, `end_us` and `width_us`.

    A run ends at the end in its head, or with its last operation if that ended later; this is
    looked up at once.
    """
    last = operations.groupBy("run_id").agg({"end_us": "max"}).toArrow()
    ends_us = dict(zip(last[0].to_pylist(), last[1].to_pylist(), strict=True))
    return local_table(session, span_rows(traces, ends_us), spark_columns(SPANS))


def run_faults(session: SparkSession, traces: Sequence[Trace]) -> DataFrame:
    """The faults of all runs, as `peaks` takes them."""
    return local_table(session, fault_rows(traces), spark_columns(FAULTS))


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        audit: `run_id`, `anomaly`, `group`, `verdict`, `setting`, `count`.
        witnesses: cases with the rows involved, as `docs/audit.md` describes.
        cases: every case, before it is counted.
    """

    audit: DataFrame
    witnesses: DataFrame
    cases: DataFrame

    def __enter__(self) -> Audit:
        """A `with` block isn't needed: Spark frees what it keeps for the tables with them."""
        return self

    def __exit__(self, *_error: object) -> None:
        pass


def audit(
    sends: DataFrame,
    reads: DataFrame,
    effects: DataFrame | None = None,
    commits: DataFrame | None = None,
    configuration: Configuration = None,
    witnesses: int = WITNESSES,
    *,
    transactions: DataFrame | None = None,
    expect: Sequence[str] = (),
    split: int = SPLIT,
    split_us: int = SPLIT_US,
) -> Audit:
    """Find every anomaly of order and duplicates in some traces, and judge each.

    O(n log n) in the number of rows; no task holds more than one range of a partition, producer,
    reader or key.

    Args:
        sends, reads: the trace's tables of these names, of any number of runs; columns that may be
            null may be missing.
        effects, commits, transactions: the same; None for a trace without them.
        configuration: of the producers and consumers, for all runs or by run id; what is not
            given is unknown, and what depends on it is indeterminate.
        witnesses: how many cases of each run and anomaly come with their rows.
        expect: `order`, `once`, `no-loss`, `one-writer`: what is a violation even where the
            settings permit it.
        split: how many offsets, sequence numbers or polls one range holds.
        split_us: how much time one range of a key's effects holds, in microseconds.

    Raises:
        ValueError: a number below 1 (`witnesses`: below 0), an unknown expectation, or a
            configuration that contradicts itself.
    """
    session = sends.sparkSession
    given = {
        "sends": sends,
        "reads": reads,
        "effects": effects,
        "commits": commits,
        "transactions": transactions,
    }
    tables = {
        name: local_table(session, [], spark_columns(TABLES[name])) if table is None else table
        for name, table in given.items()
    }
    settings = {
        name: local_table(session, rows, spark_columns(AUDIT_SETTINGS[name]))
        for name, rows in audit_settings(configuration, expect).items()
    }
    chain = audit_chain(witnesses, split, split_us)
    return Audit(*run_chain({**tables, **settings}, chain, ["audit", "witnesses", "cases"]))
