"""The waits and the occupancy in traces on disk, by whichever engine is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from purgatory.analysis.running import RunningAnywhere
from purgatory.analysis.uris.places import Place, require_one_file
from purgatory.analysis.waiting_results import OccupancyResults, WaitResults
from purgatory.analysis.waiting_words import Exactness
from purgatory.analysis.which_engine import Engine


def waits_of_traces(
    roots: Sequence[Place],
    out: Place | None = None,
    *,
    engine: Engine = "spark",
    window_us: int | None = None,
    percentiles: Exactness = "exact",
    number: int = 10,
    with_expiry: bool = False,
    master: str = "local[*]",
    partition_by: str | None = None,
    **how: Unpack[RunningAnywhere],
) -> WaitResults:
    """Compute the tables `waits` and `slowest` of all traces in some folders.

    Args:
        roots: folders that are a trace each, or contain traces; URIs of such as well, or,
            for Spark, tables of a catalog.
        out: the folder to make, at a URI as well, with a folder of Parquet per table;
            None writes nothing.
        engine: what computes; only that one is imported.
        window_us, percentiles: as `waits_job.waits` has them.
        number: how many of the slowest operations of each run and purgatory.
        with_expiry: whether the table `expiry` is computed too: when and where operations expired,
            for a page.
        master: the Spark master; DuckDB has none.
        partition_by: the column by which Spark's tasks part each table of results.
        how: as `RunningAnywhere` has it.

    Raises:
        PipelineError: one of them is not as it must be; in that case `out` is as it was.
    """
    if engine == "spark":
        from purgatory.analysis import wait_results

        return wait_results.tell_waits(
            roots,
            out,
            window_us=window_us,
            percentiles=percentiles,
            number=number,
            with_expiry=with_expiry,
            master=master,
            partition_by=partition_by,
            **how,
        )
    require_one_file(partition_by)
    from purgatory.analysis.duckdb_engine import waiting_folders

    return waiting_folders.tell_waits(
        roots,
        out,
        window_us=window_us,
        percentiles=percentiles,
        number=number,
        with_expiry=with_expiry,
        **how,
    )


def occupancy_of_traces(
    roots: Sequence[Place],
    out: Place | None = None,
    *,
    engine: Engine = "spark",
    number: int = 10,
    with_sizes: bool = False,
    master: str = "local[*]",
    partition_by: str | None = None,
    **how: Unpack[RunningAnywhere],
) -> OccupancyResults:
    """Compute what was parked over time in all traces in some folders.

    Args:
        roots, out, engine, master, how: as `waits_of_traces` has them.
        number: how many hot keys of each run and purgatory.
        with_sizes: whether sizes over all brokers are given too, for a page.

    Raises:
        PipelineError: one of them is not as it must be; in that case `out` is as it was.
    """
    if engine == "spark":
        from purgatory.analysis import occupancy_results

        return occupancy_results.tell_occupancy(
            roots,
            out,
            number=number,
            with_sizes=with_sizes,
            master=master,
            partition_by=partition_by,
            **how,
        )
    require_one_file(partition_by)
    from purgatory.analysis.duckdb_engine import waiting_folders

    return waiting_folders.tell_occupancy(roots, out, number=number, with_sizes=with_sizes, **how)
