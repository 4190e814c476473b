"""Parked operations by window, per run, purgatory and broker: the SQL of the job on traces.

An operation is published when it has ended, so the windows before, in which it waited, are closed
later than those of waits: by the longest wait that counts. The waits that may still be in such a
window lie in the checkpoint, a file for each batch, which is written once, and read for the windows
that its waits are in.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline.jobs.chain import read_chain
from purgatory.pipeline.jobs.macros import spark_macros
from purgatory.stream.windowed_waits import chain_of, views_of

PARKED = pa.schema(
    [
        ("run_id", pa.string()),
        ("purgatory", pa.string()),
        ("broker", pa.int32()),
        ("start_us", pa.int64()),
        ("end_us", pa.int64()),
    ]
)
"""The columns of waits, as occupancy counts them, in microseconds since 1970."""


def closed_until(watermark_us: int, *, window_us: int, longest_wait_us: int) -> int:
    """The end of the windows whose occupancy no row can change any more; 0: there are none.

    A row may still come for the window of waits that the watermark is in, and it reaches back by
    the longest wait.
    """
    reached_us = watermark_us - watermark_us % window_us - longest_wait_us
    return max(0, reached_us - reached_us % window_us)


def parked_waits(
    operations: DataFrame, *, watermark_us: int, window_us: int, longest_wait_us: int
) -> pa.Table:
    """The waits of a batch, of `operations_of`, with the columns of `PARKED`.

    Args:
        operations: the rows of the batch.
        watermark_us: the watermark before the batch, by which a row is late.
        window_us: the length of a window.
        longest_wait_us: of a longer wait, only so long a time counts, its last.
    """
    chain = chain_of(
        "parked.sql",
        watermark_us=watermark_us,
        window_us=window_us,
        longest_wait_us=longest_wait_us,
    )
    views = views_of(operations.sparkSession, {"operations": operations}, chain)
    return views["parked"].toArrow().cast(PARKED).sort_by("end_us")


def close_occupancy(
    session: SparkSession, parked: pa.Table, *, from_us: int, until_us: int, window_us: int
) -> pa.Table:
    """The mean and the maximum of the number of parked operations in some windows.

    O(parked), and a sort of the starts and ends in each window, as of the job `occupancy`.

    Args:
        session: runs the SQL.
        parked: all waits that are in these windows.
        from_us, until_us: the start of the first window and the end of the last.
        window_us: the length of a window.

    Returns:
        A row for each run, purgatory, broker (null: all) and window in which something was parked.
    """
    runs = parked["run_id"].unique()
    spans = pa.table(
        {
            "run_id": runs,
            "end_us": pa.repeat(until_us, len(runs)),
            "width_us": pa.repeat(window_us, len(runs)),
        }
    )
    inputs = {"parked": session.createDataFrame(parked), "spans": session.createDataFrame(spans)}
    chain = [
        *chain_of("closing_waits.sql", from_us=from_us),
        *read_chain("occupancy/size_changes.sql", "occupancy/bucket_changes.sql"),
        *chain_of("parked_windows.sql", until_us=until_us, window_us=window_us),
        *read_chain("occupancy/occupancy.sql"),
        *chain_of("occupancy.sql"),
    ]
    for name, macro in spark_macros().items():
        is_named = any(f"{name}(" in one.query for one in chain)
        if is_named and not session.catalog.functionExists(name):
            session.sql(macro)
    return views_of(session, inputs, chain)["parked_sizes"].toArrow()
