"""The command `waits` as a function: traces in, its tables out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from pyspark.sql import Column
from pyspark.sql import functions as f

from purgatory.analysis.opened_traces import Running
from purgatory.analysis.result_rows import Row
from purgatory.analysis.slowest_job import SLOWEST_ORDER, slowest
from purgatory.analysis.waiting_runs import (
    MOST_SHOWN_RUNS,
    Ordered,
    opened,
    shown_rows,
    write_tables,
)
from purgatory.analysis.waits_job import ALL, ALL_TOPICS, Exactness, waits, waits_order

MOST_SHOWN_WINDOWS = 60
"""How many rows of windows are shown, over all runs."""

MOST_SHOWN_TOPICS = 20
"""How many rows of topics are shown, over all runs."""


@dataclass(frozen=True)
class WaitResults:
    """What a terminal shows of the tables.

    Incomplete are the runs that were interrupted; `quarantine` counts what was set aside; `cut`
    names what has more rows than are here.
    """

    runs: Sequence[str]
    incomplete: Sequence[str]
    quarantine: Sequence[Row]
    waits: Sequence[Row]
    topics: Sequence[Row]
    windows: Sequence[Row]
    slowest: Sequence[Row]
    cut: Sequence[str] = ()


def tell_waits(
    roots: Sequence[Path],
    out: Path | None = None,
    *,
    window_us: int | None = None,
    percentiles: Exactness = "exact",
    number: int = 10,
    **how: Unpack[Running],
) -> WaitResults:
    """Compute the tables `waits` and `slowest` of all traces in some folders, and write them.

    Args:
        roots, out, how: as `opened_traces` takes them.
        window_us: as `waits` takes it.
        percentiles: as `waits` takes it.
        number: how many of the slowest operations of each run and purgatory.

    Raises:
        PipelineError: the traces, the place for the results or the session are not as they must
            be; in that case `out` is as it was.
    """
    with opened(roots, out, **how) as run:
        traces, operations = run.traces, run.operations
        table = waits(operations, window_us=window_us, by_topic=True, percentiles=percentiles)
        table = table.persist()
        slow = slowest(operations, number).persist()
        write_tables(
            {"waits": Ordered(table, waits_order()), "slowest": Ordered(slow, SLOWEST_ORDER)},
            run.folder,
        )
        shown = [trace.run_id for trace in traces[:MOST_SHOWN_RUNS]]
        of_shown = f.col("run_id").isin(shown)
        over_topics = f.coalesce(f.col("topic") == ALL_TOPICS, f.lit(False))
        whole = f.col("window_start_us").isNull()
        overall = (f.col("kind") == ALL) & (f.col("outcome") == ALL)

        def rows(chosen: Column, most: int | None = None) -> list[Row]:
            of_chosen = table.where(of_shown & chosen)
            return shown_rows(of_chosen, waits_order(), *([] if most is None else [most]))

        topics = rows(~over_topics & whole & overall, MOST_SHOWN_TOPICS + 1)
        windows = rows(over_topics & ~whole & overall, MOST_SHOWN_WINDOWS + 1)
        cut = {
            "topics": len(topics) > MOST_SHOWN_TOPICS,
            "windows": len(windows) > MOST_SHOWN_WINDOWS,
        }
        return WaitResults(
            runs=[trace.run_id for trace in traces],
            incomplete=[trace.run_id for trace in traces if not trace.complete],
            quarantine=run.quarantine,
            waits=rows(over_topics & whole),
            topics=topics[:MOST_SHOWN_TOPICS],
            windows=windows[:MOST_SHOWN_WINDOWS],
            slowest=shown_rows(slow.where(of_shown), SLOWEST_ORDER),
            cut=[name for name, is_cut in cut.items() if is_cut],
        )
