"""The command `occupancy` as a function, by Spark: traces in, its tables out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from purgatory.analysis.hot_keys_job import hot_keys, occupancy_of_keys
from purgatory.analysis.littles_law_job import littles_law
from purgatory.analysis.occupancy_job import occupancy
from purgatory.analysis.opened_traces import Running
from purgatory.analysis.peaks_job import peaks
from purgatory.analysis.uris.places import Place
from purgatory.analysis.waiting_orders import OCCUPANCY_ORDERS
from purgatory.analysis.waiting_results import OccupancyResults, occupancy_results
from purgatory.analysis.waiting_runs import opened, run_faults, span_table, written


def tell_occupancy(
    roots: Sequence[Place],
    out: Place | None = None,
    *,
    number: int = 10,
    with_sizes: bool = False,
    **how: Unpack[Running],
) -> OccupancyResults:
    """Compute what was parked over time in all traces in some folders, and write the tables.

    Args:
        roots, out, how: as `opened_traces` takes them.
        number: how many hot keys of each run and purgatory.
        with_sizes: whether sizes over all brokers are given too, for a page.

    Raises:
        PipelineError: the traces, the place for the results or the session are not as they must
            be; in that case `out` is as it was.
    """
    with opened(roots, out, OCCUPANCY_ORDERS, **how) as run:
        traces, operations = run.traces, run.operations
        spans = span_table(run.session, traces, run.last_ends_us)
        table = occupancy(operations, spans).persist()
        hot = hot_keys(operations, spans, number).persist()
        highest = peaks(operations, table, spans, run_faults(run.session, traces)).persist()
        law = littles_law(operations, table, spans).persist()
        keys = occupancy_of_keys(operations, spans, hot)
        tables = {
            "occupancy": table,
            "littles_law": law,
            "peaks": highest,
            "hot_keys": hot,
            "key_occupancy": keys,
        }
        rows = written(run, tables, OCCUPANCY_ORDERS)
        return occupancy_results(traces, run.quarantine, rows, with_sizes=with_sizes)
