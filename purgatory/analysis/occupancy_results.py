"""The command `occupancy` as a function: traces in, its tables out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from pyspark.sql import functions as f

from purgatory.analysis.hot_keys_job import HOT_KEYS_ORDER, KEY_SERIES, hot_keys, occupancy_of_keys
from purgatory.analysis.littles_law_job import littles_law
from purgatory.analysis.occupancy_job import SERIES, occupancy
from purgatory.analysis.opened_traces import Running
from purgatory.analysis.peaks_job import PEAKS_ORDER, peaks
from purgatory.analysis.result_rows import Row
from purgatory.analysis.waiting_runs import (
    MOST_SHOWN_RUNS,
    Ordered,
    opened,
    run_faults,
    run_spans,
    shown_rows,
    write_tables,
)


@dataclass(frozen=True)
class OccupancyResults:
    """What a terminal shows of the tables. Incomplete are the runs that were interrupted."""

    runs: Sequence[str]
    incomplete: Sequence[str]
    quarantine: Sequence[Row]
    littles_law: Sequence[Row]
    peaks: Sequence[Row]
    hot_keys: Sequence[Row]


def tell_occupancy(
    roots: Sequence[Path],
    out: Path | None = None,
    *,
    number: int = 10,
    **how: Unpack[Running],
) -> OccupancyResults:
    """Compute what was parked over time in all traces in some folders, and write the tables.

    Args:
        roots, out, how: as `opened_traces` takes them.
        number: how many hot keys of each run and purgatory.

    Raises:
        PipelineError: the traces, the place for the results or the session are not as they must
            be; in that case `out` is as it was.
    """
    with opened(roots, out, **how) as run:
        traces, operations = run.traces, run.operations
        spans = run_spans(run.session, traces, operations).persist()
        table = occupancy(operations, spans).persist()
        hot = hot_keys(operations, spans, number).persist()
        highest = peaks(operations, table, spans, run_faults(run.session, traces)).persist()
        law = littles_law(operations, table, spans).persist()
        tables = {
            "occupancy": Ordered(table, [*SERIES, "bucket_start_us"]),
            "littles_law": Ordered(law, SERIES),
            "peaks": Ordered(highest, PEAKS_ORDER),
            "hot_keys": Ordered(hot, HOT_KEYS_ORDER),
            "key_occupancy": Ordered(
                occupancy_of_keys(operations, spans, hot), [*KEY_SERIES, "bucket_start_us"]
            ),
        }
        write_tables(tables, run.folder)
        shown = f.col("run_id").isin([trace.run_id for trace in traces[:MOST_SHOWN_RUNS]])
        return OccupancyResults(
            runs=[trace.run_id for trace in traces],
            incomplete=[trace.run_id for trace in traces if not trace.complete],
            quarantine=run.quarantine,
            **{
                name: shown_rows(tables[name].rows.where(shown), tables[name].order)
                for name in ("littles_law", "peaks", "hot_keys")
            },
        )
