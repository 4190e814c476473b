"""The jobs: their inputs, options and outputs, and what a terminal and a page show of them.

A job on traces is one row of `JOBS`, which the command line, both engines, the folder of results,
the terminal and the page read; `engines.run.run_job` runs any of them. `STREAM` and `SWEEP` are
rows for their commands and for the programs that run them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from purgatory.pipeline.ingest.plain_data import lacking_reasons
from purgatory.pipeline.jobs.audit.anomalies import (
    AUDIT_TABLES,
    COUNTS_ORDER,
    EXPECTATIONS,
    JUDGED_ORDER,
    SPLIT,
    SPLIT_US,
    WITNESSES,
    WITNESSES_ORDER,
)
from purgatory.pipeline.jobs.audit.audit_chain import (
    AUDIT_SETTINGS,
    audit_chain,
    audit_settings,
)
from purgatory.pipeline.jobs.audit.client_settings import configuration_of
from purgatory.pipeline.jobs.clients import attempts_chain, latencies_chain, throughput_chain
from purgatory.pipeline.jobs.occupancy import (
    hot_keys_chain,
    key_occupancy_chain,
    occupancy_chain,
    peaks_chain,
)
from purgatory.pipeline.jobs.result_orders import (
    ALL,
    ALL_TOPICS,
    ATTEMPTS_ORDER,
    DISTRIBUTION_ORDER,
    EXPIRY_ORDER,
    LATENCIES_ORDER,
    OCCUPANCY_ORDERS,
    THROUGHPUT_ORDER,
    WAIT_ORDERS,
    WAITS_ORDER,
    Exactness,
    by,
)
from purgatory.pipeline.jobs.run_spans import (
    FAULTS,
    SPANS,
    WINDOWS,
    fault_rows,
    run_window_us,
    span_rows,
)
from purgatory.pipeline.jobs.waits import (
    distribution_chain,
    expiry_chain,
    slowest_chain,
    waits_chain,
    waits_over_time_chain,
)
from purgatory.pipeline.result_rows import Order
from purgatory.trace.trace_schema import TABLES

if TYPE_CHECKING:
    from purgatory.pipeline.ingest.trace_set import RowCheck, Trace
    from purgatory.pipeline.jobs.chain import Statement

MOST_SHOWN_RUNS = 10
"""The number of runs that a terminal shows; the tables have all."""

MOST_PLOTTED_RUNS = 12
"""The number of runs of an analysis that have plots; the tables have all."""

_MOST_SHOWN_ROWS = 1_000
_MOST_WINDOWS = 60
_MOST_TOPICS = 20
_MOST_DRAWN_SIZES = 12_000
"""The rows of sizes that a page has: enough for ten runs with three purgatories."""


MOST_NUMBER = 1_000_000_000
"""The largest number of an option; with one more, it fits the 32 bits that Spark's `limit` has."""


@dataclass(frozen=True)
class Option:
    """An option of a job: an argument of `run_job`, and ``--NAME`` of the command.

    Attributes:
        kind: `number` is a whole number, `duration` is in microseconds (the command takes 250ms or
            10s), `word` is one of `words`, `words` a list of them, and `flag` is true or false.
        help: the help of the command.
        least: the least number or duration, of which a duration is a multiple.
    """

    kind: Literal["number", "duration", "word", "words", "flag"]
    default: Any
    help: str
    least: int = 1
    words: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> None:
        """Check a value for the option called ``name``.

        Raises:
            ValueError: it can't have that value.
        """
        if self.kind == "words":
            if isinstance(value, str) or not isinstance(value, Collection):
                raise ValueError(f"{name} must be a list of words, not {value!r}")
            unknown = [word for word in value if word not in self.words]
            if unknown:
                raise ValueError(f"{name} takes {_join(self.words)}, not {unknown[0]!r}")
        elif self.kind == "word":
            if value not in self.words:
                raise ValueError(f"{name} must be {_join(self.words)}, not {value!r}")
        elif value is None and self.default is None:
            return
        elif not isinstance(value, int) or isinstance(value, bool) or value < self.least:
            unit = " microseconds" if self.kind == "duration" else ""
            raise ValueError(f"{name} must be {self.least}{unit} or more, not {value!r}")
        elif self.kind == "number" and value > MOST_NUMBER:
            raise ValueError(f"{name} must be {MOST_NUMBER} or less, not {value!r}")
        elif self.kind == "duration" and value % self.least:
            raise ValueError(f"{name} must be a multiple of {self.least} us, not {value} us")


def _join(words: Sequence[str]) -> str:
    return ", ".join(map(repr, words[:-1])) + f" or {words[-1]!r}"


Format = Literal[
    "text", "texts", "any", "id", "count", "percent", "ms", "short_ms", "s", "1", "3", "4"
]
"""A value in a terminal. `any` is "all" where there is none, an `id` has no commas and a
`count` has, `percent` is a share; `ms`, `short_ms` and `s` are microseconds in milliseconds, with
two digits or with three figures, and in seconds; `1`, `3` and `4` are numbers with so many digits.
"""


@dataclass(frozen=True)
class TerminalTable:
    """A table of the terminal.

    Attributes:
        title: with ``{run}`` where the run's id stands.
        columns: the column of results and how it is written, by its head.
        only_with: a column; where no row has a value in it, the table is left out.
    """

    title: str
    columns: Mapping[str, tuple[str, Format]]
    only_with: str | None = None


class Is(NamedTuple):
    """A condition on rows: a column has the value or, negated, has another; null is a value too."""

    column: str
    value: str | None
    negated: bool = False

    @property
    def sql(self) -> str:
        """The condition as both engines take it."""
        value = "NULL" if self.value is None else f"'{self.value}'"
        return f"{self.column} IS {'' if self.negated else 'NOT '}DISTINCT FROM {value}"


@dataclass(frozen=True)
class View:
    """The rows of a table that are shown.

    Attributes:
        table: the table of results.
        where: the conditions that all rows keep.
        runs: the number of runs; None: all.
        most: the number of rows; None: all.
        page: the field of `report.findings.Results` that has them; None: the page lacks them.
        for_page: only a page shows them.
        is_cut: report that there are more rows than `most`.
        terminal: the table of the terminal; None: there is none, or `cli.job_output` prints it.
    """

    table: str
    where: tuple[Is, ...] = ()
    runs: int | None = MOST_SHOWN_RUNS
    most: int | None = _MOST_SHOWN_ROWS
    page: str | None = None
    for_page: bool = False
    is_cut: bool = False
    terminal: TerminalTable | None = None


class SmallTable(NamedTuple):
    """A table of few rows that a job reads beside the traces: its columns with types, its rows."""

    columns: Mapping[str, str]
    rows: Sequence[tuple[object, ...]]


Options = Mapping[str, Any]
SmallTables = Callable[["Sequence[Trace]", "RowCheck", Options], Mapping[str, SmallTable]]


@dataclass(frozen=True)
class Job:
    """The inputs, options, statements, outputs and views of a job.

    Attributes:
        name: that of its command.
        help: of its command.
        reads: the tables of a trace that it reads, and whose bad rows are quarantined.
        outputs: the tables of results in the order of writing, each with the order of its rows.
            The columns are those of the functions in `jobs`.
        options: by name.
        statements: the chain of SQL that computes the outputs, by the options and `page`.
        small_tables: the other tables that the statements read, by the traces, the check
            of their rows and the options.
        views: by name, in the order of the terminal.
        quarantine: whether the results have the table `quarantine`.
        only_for_page: outputs that only a page needs.
        runs: the number of runs on a page; None: all.
        always_page: a page always stands beside the tables, so that a folder is needed.
        nothing: the line on a terminal for a run without rows.
    """

    name: str
    help: str
    reads: tuple[str, ...]
    outputs: Mapping[str, Order]
    options: Mapping[str, Option]
    statements: Callable[[Options], Sequence[Statement]] = lambda _options: ()
    small_tables: SmallTables = lambda _traces, _check, _options: {}
    views: Mapping[str, View] = field(default_factory=dict)
    quarantine: Literal["never", "if bad", "always"] = "if bad"
    only_for_page: frozenset[str] = field(default_factory=frozenset)
    runs: int | None = MOST_SHOWN_RUNS
    always_page: bool = False
    nothing: str = "no operations"

    def tables(self, *, page: bool) -> Mapping[str, Order]:
        """The outputs to compute, with the order of each."""
        hidden = frozenset() if page else self.only_for_page
        return {name: order for name, order in self.outputs.items() if name not in hidden}

    @property
    def defaults(self) -> Mapping[str, object]:
        """The options with their defaults."""
        return {name: option.default for name, option in self.options.items()}

    def all_options(self, options: Mapping[str, object]) -> Mapping[str, object]:
        """The options, with defaults for those that are missing.

        Raises:
            TypeError: the job has no such option.
            ValueError: one can't have its value.
        """
        unknown = options.keys() - self.options.keys()
        if unknown:
            raise TypeError(
                f"{self.name} has no option {min(unknown)!r}; it has {', '.join(self.options)}"
            )
        for name, value in options.items():
            self.options[name].check(name, value)
        return {**self.defaults, **options}


def _all_rows(table: str, page: str | None = None) -> View:
    return View(table, runs=None, most=None, page=page or table)


def _waits_statements(options: Options) -> list[Statement]:
    return [
        *waits_chain(options["window_us"], options["percentiles"], by_topic=True),
        *slowest_chain(options["slowest"]),
        *(expiry_chain() if options["page"] else ()),
    ]


def _occupancy_statements(options: Options) -> list[Statement]:
    return [
        *occupancy_chain(),
        *peaks_chain(),
        *hot_keys_chain(options["hot_keys"]),
        *key_occupancy_chain(),
    ]


def _occupancy_tables(
    traces: Sequence[Trace], check: RowCheck, _options: Options
) -> Mapping[str, SmallTable]:
    return {
        "spans": SmallTable(SPANS, span_rows(traces, check.last_ends_us)),
        "faults": SmallTable(FAULTS, fault_rows(traces)),
    }


def _audit_tables(
    traces: Sequence[Trace], check: RowCheck, options: Options
) -> Mapping[str, SmallTable]:
    configuration = configuration_of(traces, check.by_run())
    lacking = [
        (trace.run_id, anomaly, why)
        for trace in traces
        for anomaly, why in lacking_reasons(trace.lacking).items()
    ]
    rows = audit_settings(configuration, options.get("expect", ()), lacking)
    return {name: SmallTable(AUDIT_SETTINGS[name], rows[name]) for name in AUDIT_SETTINGS}


def _analyze_tables(
    traces: Sequence[Trace], check: RowCheck, options: Options
) -> Mapping[str, SmallTable]:
    spans = [
        (run_id, max(end_us, 0), width_us)
        for run_id, end_us, width_us in span_rows(traces, check.last_ends_us)
    ]
    windows = [(run_id, run_window_us(us)) for run_id, us, _ in spans[:MOST_PLOTTED_RUNS]]
    return {
        "spans": SmallTable(SPANS, spans),
        "windows": SmallTable(WINDOWS, windows),
        **_audit_tables(traces, check, options),
    }


def _analyze_statements(_options: Options) -> list[Statement]:
    return [
        *waits_chain(None, "exact", by_topic=False),
        *latencies_chain(),
        *attempts_chain(),
        *occupancy_chain(),
        *audit_chain(WITNESSES, SPLIT, SPLIT_US),
        *waits_over_time_chain(),
        *distribution_chain(plotted=True),
        *expiry_chain(plotted=True),
        *slowest_chain(plotted=True),
        *throughput_chain(),
    ]


_WHOLE = Is("window_start_us", None)
_OVER_TOPICS = Is("topic", ALL_TOPICS)
_OVERALL = (Is("kind", ALL), Is("outcome", ALL))

_COUNTED: Mapping[str, tuple[str, Format]] = {
    "count": ("operations", "count"),
    "expired %": ("expiry_ratio", "percent"),
    "p50": ("wait_p50_us", "short_ms"),
    "p95": ("wait_p95_us", "short_ms"),
    "p99": ("wait_p99_us", "short_ms"),
    "p99.9": ("wait_p999_us", "short_ms"),
    "max": ("wait_max_us", "short_ms"),
}

WAITS = Job(
    "waits",
    "Show how long requests waited, by outcome, topic and time window, and the slowest.",
    reads=("operations",),
    options={
        "window_us": Option("duration", None, "Length of a time window."),
        "percentiles": Option(
            "word",
            "exact",
            "Approximate ones are quicker, and at most 0.1 % too small above 10 ms.",
            words=get_args(Exactness),
        ),
        "slowest": Option("number", 10, "Number of slowest operations per purgatory."),
    },
    statements=_waits_statements,
    outputs={**WAIT_ORDERS, "expiry": EXPIRY_ORDER},
    only_for_page=frozenset({"expiry"}),
    views={
        "waits": View("waits", (_OVER_TOPICS, _WHOLE), page="waits"),
        "windows": View(
            "waits",
            (_OVER_TOPICS, _WHOLE._replace(negated=True), *_OVERALL),
            most=_MOST_WINDOWS,
            is_cut=True,
            page="over_time",
            terminal=TerminalTable(
                "Waits in {run} by window of time, in milliseconds",
                {
                    "from s": ("window_start_us", "s"),
                    "purgatory": ("purgatory", "text"),
                    **_COUNTED,
                },
            ),
        ),
        "topics": View(
            "waits",
            (_OVER_TOPICS._replace(negated=True), _WHOLE, *_OVERALL),
            most=_MOST_TOPICS,
            is_cut=True,
            terminal=TerminalTable(
                "Waits in {run} by topic, in milliseconds",
                {"purgatory": ("purgatory", "text"), "topic": ("topic", "text"), **_COUNTED},
                only_with="topic",
            ),
        ),
        "slowest": View(
            "slowest",
            page="slowest",
            terminal=TerminalTable(
                "The slowest in {run}",
                {
                    "purgatory": ("purgatory", "text"),
                    "kind": ("kind", "text"),
                    "outcome": ("outcome", "text"),
                    "keys": ("watch_keys", "texts"),
                    "broker": ("broker", "id"),
                    "operation": ("operation", "id"),
                    "at s": ("start_us", "s"),
                    "wait ms": ("wait_us", "ms"),
                },
            ),
        ),
        "expiry": View("expiry", page="expiry", for_page=True),
    },
)

OCCUPANCY = Job(
    "occupancy",
    "Show how many requests were pending over time, the peaks with their causes, and hot keys.",
    reads=("operations",),
    options={"hot_keys": Option("number", 10, "Number of hottest keys per purgatory.")},
    statements=_occupancy_statements,
    small_tables=_occupancy_tables,
    outputs=OCCUPANCY_ORDERS,
    views={
        "peaks": View("peaks", page="peaks"),
        "hot_keys": View(
            "hot_keys",
            page="hot_keys",
            terminal=TerminalTable(
                "Hot keys in {run}",
                {
                    "purgatory": ("purgatory", "text"),
                    "key": ("key", "text"),
                    "mean parked": ("mean_parked", "3"),
                    "entries": ("entries", "count"),
                    "expired": ("expired", "count"),
                    "mean ms": ("wait_mean_us", "ms"),
                    "max ms": ("wait_max_us", "ms"),
                },
            ),
        ),
        "occupancy": View(
            "occupancy",
            (Is("broker", None),),
            most=_MOST_DRAWN_SIZES,
            page="occupancy",
            for_page=True,
        ),
    },
    nothing="nothing was pending",
)

AUDIT = Job(
    "audit",
    "Audit traces for order, duplicates and losses; exit with 1 on a violation, with 3 if a run "
    "could not be decided.",
    reads=AUDIT_TABLES,
    options={
        "expect": Option(
            "words",
            (),
            "Expectations that must hold, even if settings permit otherwise; may be given again.",
            words=tuple(EXPECTATIONS),
        ),
        "witnesses": Option(
            "number",
            WITNESSES,
            "Number of cases per anomaly to show with their rows.",
            least=0,
        ),
    },
    statements=lambda options: audit_chain(options["witnesses"], SPLIT, SPLIT_US),
    small_tables=_audit_tables,
    outputs={"audit": COUNTS_ORDER, "judged": JUDGED_ORDER, "witnesses": WITNESSES_ORDER},
    views={
        "audit": _all_rows("audit"),
        "judged": _all_rows("judged"),
        "witnesses": View("witnesses", runs=None, most=None, page="witnesses", for_page=True),
    },
    quarantine="never",
    runs=None,
)

ANALYZE = Job(
    "analyze",
    "Analyze traces: waits, pending requests over time, order and losses; write tables and a page.",
    reads=tuple(TABLES),
    options={},
    statements=_analyze_statements,
    small_tables=_analyze_tables,
    outputs={
        "waits": WAITS_ORDER,
        "latencies": LATENCIES_ORDER,
        "attempts": ATTEMPTS_ORDER,
        "occupancy": OCCUPANCY_ORDERS["occupancy"],
        "audit": COUNTS_ORDER,
        "judged": JUDGED_ORDER,
        "witnesses": WITNESSES_ORDER,
        "distribution": DISTRIBUTION_ORDER,
        "expiry": EXPIRY_ORDER,
        "waits_over_time": WAITS_ORDER,
        "slowest": WAIT_ORDERS["slowest"],
        "throughput": THROUGHPUT_ORDER,
    },
    views={
        "waits": _all_rows("waits"),
        "latencies": _all_rows("latencies"),
        "attempts": _all_rows("attempts"),
        "occupancy": View("occupancy", runs=MOST_PLOTTED_RUNS, most=None, page="occupancy"),
        "audit": _all_rows("audit"),
        "judged": _all_rows("judged"),
        "witnesses": View("witnesses", runs=MOST_PLOTTED_RUNS, most=None, page="witnesses"),
        "distribution": _all_rows("distribution"),
        "expiry": _all_rows("expiry"),
        "waits_over_time": _all_rows("waits_over_time", "over_time"),
        "slowest": _all_rows("slowest"),
        "throughput": _all_rows("throughput"),
    },
    quarantine="always",
    runs=None,
    always_page=True,
)

STREAM = Job(
    "stream",
    "Follow the published operations of a cluster: waits and occupancy by time window.",
    reads=("operations",),
    options={
        "window_us": Option("duration", 10_000_000, "Length of a time window.", 1_000),
        "watermark_us": Option(
            "duration", 30_000_000, "How late a row may be, behind the newest one.", 1_000
        ),
        "longest_wait_us": Option(
            "duration",
            60_000_000,
            "Longest wait that occupancy counts whole; it is written that much later than waits.",
            1_000,
        ),
        "most_rows": Option("number", 400_000, "Maximum number of rows in a batch."),
    },
    outputs={
        "waits": by("run_id", "purgatory", "kind", "window_start"),
        "occupancy": by("run_id", "purgatory", "broker", "window_start"),
    },
)

SWEEP = Job(
    "sweep",
    "Simulate many variants of a scenario, and answer which settings keep a bound.\n\n"
    "Results are written as they come: after Ctrl-C the same command continues, and an extended "
    "sweep runs only new scenarios.",
    reads=(),
    options={"retry_failed": Option("flag", False, "Run failed scenarios of earlier runs again.")},
    outputs={"points": by("point", "seed"), "heatmaps": by("heatmap", "y_level", "x_level")},
)

JOBS: Mapping[str, Job] = {job.name: job for job in (WAITS, OCCUPANCY, AUDIT, ANALYZE)}
