"""The audit: from the tables of a trace to the tables of verdicts and witnesses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, reduce
from types import TracebackType

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from purgatory.pipeline.jobs import expressions as engines
from purgatory.pipeline.jobs.audit.anomalies import (
    AUDIT_TABLES,
    SPLIT,
    SPLIT_US,
    WITNESSES,
    check_limits,
)
from purgatory.pipeline.jobs.audit.cases import SettingsTables, settings_tables
from purgatory.pipeline.jobs.audit.client_settings import Configuration
from purgatory.pipeline.jobs.audit.losses_and_duplicates import single_places, value_cases, values
from purgatory.pipeline.jobs.audit.offsets import inconsistent_offsets, input_cases, writer_cases
from purgatory.pipeline.jobs.audit.order import (
    disorder_candidates,
    key_cases,
    poll_cases,
    poll_pieces,
    sequence_cases,
)
from purgatory.pipeline.jobs.audit.transactions import (
    committed_effects,
    mismatched_commits,
    partial_transactions,
    resolve_sends,
    visible_reads,
)
from purgatory.pipeline.jobs.audit.verdicts import judge_cases
from purgatory.pipeline.jobs.audit.witnesses import counts
from purgatory.pipeline.jobs.audit.witnesses import witnesses as witness_table
from purgatory.trace.trace_schema import NULLABLE, TABLES


class Audit:
    """The result of an audit: lazy tables, over intermediate ones that Spark persists.

    `close`, or the end of a `with` block, unpersists those; the tables can still be computed
    afterwards, from the start.

    Attributes:
        audit: `run_id`, `anomaly`, `group`, `verdict`, `setting`, `count`.
        cases: every case, before it is counted.
    """

    def __init__(
        self,
        audit: DataFrame,
        cases: DataFrame,
        witnesses: Callable[[DataFrame], DataFrame],
        persisted: Sequence[DataFrame],
    ) -> None:
        self.audit = audit
        self.cases = cases
        self._witnesses = witnesses
        self._persisted = persisted

    @cached_property
    def witnesses(self) -> DataFrame:
        """Cases with the rows involved, as `docs/audit.md` describes."""
        return self._witnesses(self.cases)

    def close(self) -> None:
        """Unpersist the intermediate tables. Idempotent."""
        for table in self._persisted:
            table.unpersist()

    def __enter__(self) -> Audit:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


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

    The tables are lazy. O(n log n) in the number of rows; no task holds more than one range of a
    partition, producer, reader or key.

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
    check_limits(witnesses, split, split_us)
    optional = {
        "sends": sends,
        "reads": reads,
        "effects": effects,
        "commits": commits,
        "transactions": transactions,
    }
    tables = {
        name: _add_missing_columns(name, table)
        for name, table in optional.items()
        if table is not None
    }
    settings = settings_tables(sends.sparkSession, configuration, expect)
    return build_audit(tables, settings, witnesses, split, split_us)


def build_audit(
    tables: Mapping[str, DataFrame],
    settings: SettingsTables,
    witnesses: int,
    split: int,
    split_us: int,
) -> Audit:
    """The audit of tables with all columns; arguments as of `audit`."""
    sends, reads = tables["sends"], tables["reads"]
    effects, commits = tables.get("effects"), tables.get("commits")
    transactions = tables.get("transactions")
    resolved, persisted = resolve_sends(sends, transactions)
    places = engines.persist(single_places(resolved, reads)) if engines.COUNTS_FIRST else None
    value_table = engines.persist(values(resolved, reads, settings, places))
    in_order, all_sends = value_table, None
    if places is not None:
        in_order, all_sends = disorder_candidates(value_table, resolved, places), resolved
    visible = reads if transactions is None else visible_reads(reads, resolved, value_table)
    pieces = engines.persist(poll_pieces(visible, split))
    case_tables = [
        inconsistent_offsets(sends, reads),
        value_cases(value_table),
        sequence_cases(in_order, split),
        writer_cases(sends),
        poll_cases(pieces, split),
        input_cases(reads, effects, commits, value_table, transactions),
    ]
    if transactions is not None:
        case_tables.append(partial_transactions(resolved, reads, settings))
        if commits is not None:
            case_tables.append(mismatched_commits(commits, transactions, effects))
    if effects is not None:
        applied = effects if transactions is None else committed_effects(effects, transactions)
        case_tables.append(key_cases(applied, reads, value_table, split_us, all_sends))
    case_tables = [engines.materialize(cases) for cases in case_tables]
    cases = engines.persist(judge_cases(reduce(DataFrame.unionByName, case_tables), settings))
    return Audit(
        audit=counts(cases, runs_table(tables, settings)),
        cases=cases,
        # Each step on a long plan takes time: only on request.
        witnesses=lambda cases: witness_table(cases, witnesses, tables),
        persisted=(*persisted, value_table, pieces, cases),
    )


def _add_missing_columns(name: str, table: DataFrame) -> DataFrame:
    """Add the nullable columns that a table lacks."""
    missing = sorted(NULLABLE[name] - set(table.columns))
    if not missing:
        return table  # Spark Connect refuses to add nothing
    return table.withColumns({column: f.lit(None).cast(TABLES[name][column]) for column in missing})


def runs_table(tables: Mapping[str, DataFrame], settings: SettingsTables) -> DataFrame:
    """The runs in the tables and in the configuration, and which rows each has.

    Sends in transactions make a run `transactional`, also without the table of transactions.
    """
    presence: dict[str, dict[str, Column]] = {name: {name: f.lit(True)} for name in tables}
    ok, firm = f.col("outcome") == "ok", f.col("acks") != 0
    presence["sends"] |= {
        "stored": f.col("outcome") != "fail",
        "acknowledged": ok & firm,
        "transactional": f.col("transactional_id").isNotNull(),
    }
    names = dict.fromkeys([*AUDIT_TABLES, *presence["sends"]])
    runs = [
        tables[name]
        .groupBy("run_id")
        .agg(*(f.bool_or(kinds.get(kind, f.lit(False))).alias(f"has_{kind}") for kind in names))
        for name, kinds in presence.items()
    ]
    # A run may have no rows.
    configured = settings.runs.where("run_id is not null")
    runs.append(configured.select("run_id", *(f.lit(False).alias(f"has_{kind}") for kind in names)))
    return (
        reduce(DataFrame.unionByName, runs)
        .groupBy("run_id")
        .agg(*(f.bool_or(f"has_{kind}").alias(f"has_{kind}") for kind in names))
    )
