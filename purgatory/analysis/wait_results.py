"""The command `waits` as a function, by Spark: traces in, its tables out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from purgatory.analysis.expiry import expiry
from purgatory.analysis.opened_traces import Running
from purgatory.analysis.slowest_job import slowest
from purgatory.analysis.uris.places import Place
from purgatory.analysis.waiting_orders import wait_orders
from purgatory.analysis.waiting_results import WaitResults, wait_results
from purgatory.analysis.waiting_runs import opened, written
from purgatory.analysis.waiting_words import Exactness
from purgatory.analysis.waits_job import waits


def tell_waits(
    roots: Sequence[Place],
    out: Place | None = None,
    *,
    window_us: int | None = None,
    percentiles: Exactness = "exact",
    number: int = 10,
    with_expiry: bool = False,
    **how: Unpack[Running],
) -> WaitResults:
    """Compute the tables `waits` and `slowest` of all traces in some folders, and write them.

    Args:
        roots, out, how: as `opened_traces` takes them.
        window_us: as `waits` takes it.
        percentiles: as `waits` takes it.
        number: how many of the slowest operations of each run and purgatory.
        with_expiry: whether the table `expiry` is computed too: when and where operations expired,
            for a page.

    Raises:
        PipelineError: the traces, the place for the results or the session are not as they must
            be; in that case `out` is as it was.
    """
    orders = wait_orders(with_expiry=with_expiry)
    with opened(roots, out, orders, **how) as run:
        table = waits(run.operations, window_us=window_us, by_topic=True, percentiles=percentiles)
        tables = {
            "waits": table.persist(),
            "slowest": slowest(run.operations, number).persist(),
        }
        if with_expiry:
            tables["expiry"] = expiry(run.operations).persist()
        rows = written(run, tables, orders)
        return wait_results(run.traces, run.quarantine, rows, with_expiry=with_expiry)
