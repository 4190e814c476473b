"""The jobs: their inputs, options and outputs, and the rows that a terminal and a page show.

A job is one row of `JOBS`, which the command line, both engines, the folder of results and the page
read; `engines.run.run_job` runs any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from purgatory.pipeline.jobs.audit.anomalies import (
    AUDIT_TABLES,
    COUNTS_ORDER,
    WITNESSES,
    WITNESSES_ORDER,
)
from purgatory.pipeline.jobs.tables import (
    ALL,
    ALL_TOPICS,
    ATTEMPTS_ORDER,
    DISTRIBUTION_ORDER,
    EXPIRY_ORDER,
    LATENCIES_ORDER,
    OCCUPANCY_ORDERS,
    WAIT_ORDERS,
    WAITS_ORDER,
)
from purgatory.pipeline.result_rows import Order
from purgatory.trace.trace_schema import TABLES

MOST_SHOWN_RUNS = 10
"""The number of runs that a terminal shows; the tables have all."""

MOST_PLOTTED_RUNS = 12
"""The number of runs of an analysis that have plots; the tables have all."""

_MOST_SHOWN_ROWS = 1_000
_MOST_WINDOWS = 60
_MOST_TOPICS = 20
_MOST_DRAWN_SIZES = 12_000
"""The rows of sizes that a page has: enough for ten runs with three purgatories."""


@dataclass(frozen=True)
class View:
    """The rows of a table that are shown.

    Attributes:
        table: the table of results.
        condition: SQL that both engines accept; None: all rows.
        runs: the number of runs; None: all.
        most: the number of rows; None: all.
        page: the field of `report.findings.Results` that has them; None: the page lacks them.
        for_page: only a page shows them.
        is_cut: report that there are more rows than `most`.
    """

    table: str
    condition: str | None = None
    runs: int | None = MOST_SHOWN_RUNS
    most: int | None = _MOST_SHOWN_ROWS
    page: str | None = None
    for_page: bool = False
    is_cut: bool = False


@dataclass(frozen=True)
class Job:
    """The inputs, options, outputs and views of a job.

    Attributes:
        name: that of its command.
        reads: the tables of a trace that it reads, and whose bad rows are quarantined.
        outputs: the tables of results in the order of writing, each with the order of its rows.
            The columns are those of the functions in `jobs`.
        options: their names and defaults.
        views: by name.
        weighs: the tables whose number of rows determines the amount of work.
        quarantine: whether the results have the table `quarantine`.
        only_for_page: outputs that only a page needs.
        runs: the number of runs on a page; None: all.
    """

    name: str
    reads: tuple[str, ...]
    outputs: Mapping[str, Order]
    options: Mapping[str, object]
    views: Mapping[str, View]
    weighs: tuple[str, ...] = ("operations",)
    quarantine: Literal["never", "if bad", "always"] = "if bad"
    only_for_page: frozenset[str] = field(default_factory=frozenset)
    runs: int | None = MOST_SHOWN_RUNS

    def tables(self, *, page: bool) -> Mapping[str, Order]:
        """The outputs to compute, with the order of each."""
        hidden = frozenset() if page else self.only_for_page
        return {name: order for name, order in self.outputs.items() if name not in hidden}

    def all_options(self, options: Mapping[str, object]) -> Mapping[str, object]:
        """The options, with defaults for those that are missing.

        Raises:
            TypeError: the job has no such option.
        """
        unknown = options.keys() - self.options.keys()
        if unknown:
            raise TypeError(
                f"{self.name} has no option {min(unknown)!r}; it has {', '.join(self.options)}"
            )
        return {**self.options, **options}


def _all_rows(table: str, page: str | None = None) -> View:
    return View(table, runs=None, most=None, page=page or table)


_WHOLE = "window_start_us IS NULL"
_OVER_TOPICS = f"coalesce(topic = '{ALL_TOPICS}', false)"
_OVERALL = f"kind = '{ALL}' AND outcome = '{ALL}'"

WAITS = Job(
    "waits",
    reads=("operations",),
    options={"window_us": None, "percentiles": "exact", "number": 10},
    outputs={**WAIT_ORDERS, "expiry": EXPIRY_ORDER},
    only_for_page=frozenset({"expiry"}),
    views={
        "topics": View(
            "waits",
            f"NOT {_OVER_TOPICS} AND {_WHOLE} AND {_OVERALL}",
            most=_MOST_TOPICS,
            is_cut=True,
        ),
        "windows": View(
            "waits",
            f"{_OVER_TOPICS} AND NOT {_WHOLE} AND {_OVERALL}",
            most=_MOST_WINDOWS,
            is_cut=True,
            page="over_time",
        ),
        "waits": View("waits", f"{_OVER_TOPICS} AND {_WHOLE}", page="waits"),
        "slowest": View("slowest", page="slowest"),
        "expiry": View("expiry", page="expiry", for_page=True),
    },
)

OCCUPANCY = Job(
    "occupancy",
    reads=("operations",),
    options={"number": 10},
    outputs=OCCUPANCY_ORDERS,
    views={
        **{name: View(name, page=name) for name in ("littles_law", "peaks", "hot_keys")},
        "occupancy": View(
            "occupancy", "broker IS NULL", most=_MOST_DRAWN_SIZES, page="occupancy", for_page=True
        ),
    },
)

AUDIT = Job(
    "audit",
    reads=AUDIT_TABLES,
    weighs=("sends", "reads"),
    options={"expect": (), "witnesses": WITNESSES},
    outputs={"audit": COUNTS_ORDER, "witnesses": WITNESSES_ORDER},
    views={
        "audit": _all_rows("audit"),
        "witnesses": View("witnesses", runs=None, most=None, page="witnesses", for_page=True),
    },
    quarantine="never",
    runs=None,
)

ANALYZE = Job(
    "analyze",
    reads=tuple(TABLES),
    options={},
    outputs={
        "waits": WAITS_ORDER,
        "latencies": LATENCIES_ORDER,
        "attempts": ATTEMPTS_ORDER,
        "occupancy": OCCUPANCY_ORDERS["occupancy"],
        "audit": COUNTS_ORDER,
        "witnesses": WITNESSES_ORDER,
        "distribution": DISTRIBUTION_ORDER,
        "expiry": EXPIRY_ORDER,
        "waits_over_time": WAITS_ORDER,
    },
    views={
        "waits": _all_rows("waits"),
        "latencies": _all_rows("latencies"),
        "attempts": _all_rows("attempts"),
        "occupancy": View("occupancy", runs=MOST_PLOTTED_RUNS, most=None, page="occupancy"),
        "audit": _all_rows("audit"),
        "witnesses": View("witnesses", runs=MOST_PLOTTED_RUNS, most=None, page="witnesses"),
        "distribution": _all_rows("distribution"),
        "expiry": _all_rows("expiry"),
        "waits_over_time": _all_rows("waits_over_time", "over_time"),
    },
    quarantine="always",
    runs=None,
)

JOBS: Mapping[str, Job] = {job.name: job for job in (WAITS, OCCUPANCY, AUDIT, ANALYZE)}
