"""Waits of operations: the chains of the tables `waits`, `slowest`, `expiry` and the like.

Each reads the view or table `operations`; where a chain is for the plotted runs only, it reads the
operations of the runs in the small table `windows` (`run_spans.WINDOWS`).
"""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING

from purgatory.pipeline.jobs.chain import Statement, literal, read_chain, renamed
from purgatory.pipeline.jobs.result_orders import MOST_KEYS, check_number, check_waits
from purgatory.trace.percentiles import DECIMALS

if TYPE_CHECKING:
    from purgatory.pipeline.jobs.result_orders import Exactness

BINS_PER_POWER = 5
"""The number of bins per power of ten in `distribution`.

Each bound is 1.58 times the one before, which is enough for a logarithmic axis, in some forty rows
for any number of operations.
"""

_BOUNDS_US = [
    float(Decimal(10) ** Decimal(number / BINS_PER_POWER))
    for number in range(19 * BINS_PER_POWER + 1)
]
"""All bounds of waits in 64 bits: libraries disagree on the last digits of powers."""


def waits_chain(
    window_us: int | None = None, percentiles: Exactness = "exact", *, by_topic: bool = False
) -> list[Statement]:
    """The chain of `waits`: a row per run, purgatory, kind and outcome, and rows over all of each.

    The waits of a row over all outcomes are those of completed operations. Operations that were
    pending at the end of the run are counted, and have their waits so far in a row of their own.

    Args:
        window_us: the length of the windows of time, in microseconds; each row is then of the
            operations that started in one of them. None: the whole run.
        percentiles: `approximate` is up to 0.1 % too small (`rounded_waits`), and faster.
        by_topic: also rows per topic. An operation on several topics counts in the rows of each,
            and once in those over all topics; one without keys counts under a topic of null.

    Raises:
        ValueError: `window_us` is not positive, or `percentiles` is invalid.
    """
    check_waits(window_us, percentiles)
    windows = f"select *, cast({literal(window_us)} as bigint) as window_us from operations"
    return _waits(windows, percentiles, by_topic)


def waits_over_time_chain() -> list[Statement]:
    """The chain of `waits_over_time`: `waits` by window, each run with its own width of windows.

    Percentiles are approximate, immediate operations are left out, and only the runs in `windows`
    are there.
    """
    windows = (
        "select /*+ broadcast(windows) */ operations.*, window_us from operations "
        "join windows using (run_id) where outcome <> 'immediate'"
    )
    return renamed(_waits(windows, "approximate", by_topic=False), {"waits": "waits_over_time"})


def _waits(windows: str, percentiles: Exactness, by_topic: bool) -> list[Statement]:
    """The chain of `waits` over a query of operations with the lengths of their windows."""
    chain = read_chain(
        "waits/step_counts.sql",
        "waits/percentiles.sql",
        "waits/waits.sql",
        approximate=percentiles == "approximate",
        by_topic=by_topic,
        decimals=DECIMALS,
    )
    return [Statement("windowed_operations", False, windows), *chain]


def slowest_chain(number: int = 10, *, plotted: bool = False) -> list[Statement]:
    """The chain of `slowest`: for each run and purgatory, the operations with the longest waits.

    Args:
        number: per run and purgatory, at least 1.
        plotted: whether only the runs in `windows` are wanted.

    Raises:
        ValueError: a number below 1.
    """
    check_number(number)
    return [*_operations(plotted), *read_chain("waits/slowest.sql", number=number)]


def expiry_chain(most_keys: int = MOST_KEYS, *, plotted: bool = False) -> list[Statement]:
    """The chain of `expiry`: a row per run, purgatory, broker and key that operations waited under.

    A key of null stands for all operations of the broker, the only row in a trace without keys. An
    operation under several keys counts under each. Immediate and pending operations do not count.

    Args:
        most_keys: the number of keys per run, those with the most expired operations.
        plotted: whether only the runs in `windows` are wanted.
    """
    return [*_operations(plotted), *read_chain("waits/expiry.sql", most_keys=most_keys)]


def distribution_chain(*, plotted: bool = False) -> list[Statement]:
    """The chain of `distribution`: a row per run, purgatory, outcome and bin with operations in it.

    Immediate operations, which did not wait, and pending ones, whose waits are unknown, are left
    out.

    Args:
        plotted: whether only the runs in `windows` are wanted.
    """
    bounds = ", ".join(
        literal((number, low_us, high_us))
        for number, (low_us, high_us) in enumerate(pairwise(_BOUNDS_US))
    )
    return [
        *_operations(plotted),
        Statement(
            "bin_bounds",
            False,
            f"select bin, low_us, high_us from (values {bounds}) as listed(bin, low_us, high_us)",
        ),
        *read_chain("waits/distribution.sql", bins_per_power=BINS_PER_POWER),
    ]


def _operations(plotted: bool) -> list[Statement]:
    """The view that the chains read: all operations, or those of the plotted runs."""
    where = " where run_id in (select run_id from windows)" if plotted else ""
    return [Statement("chosen_operations", False, f"select * from operations{where}")]
