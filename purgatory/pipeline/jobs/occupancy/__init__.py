"""Parked operations over time: the chains of `occupancy` and its causes.

They read `operations` and the small tables `spans` and `faults` (`run_spans.SPANS` and `FAULTS`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.pipeline.jobs.chain import read_chain
from purgatory.pipeline.jobs.result_orders import check_number

if TYPE_CHECKING:
    from purgatory.pipeline.jobs.chain import Statement

MOST_PEAKS = 3
"""The most peaks of a run and purgatory."""

MOST_NAMED = 5
"""The most kinds, outcomes, brokers and keys of a peak, in the order of their counts."""

BUCKETS_APART = 20
"""The least distance of two peaks; a run has 160 to 400 buckets, unless it is very short."""


def occupancy_chain() -> list[Statement]:
    """The chain of `occupancy`: a row per run, purgatory, broker and bucket of time.

    A broker of null stands for all brokers. Every bucket from 0 to the end of the run has a row,
    also without parked operations.
    """
    return read_chain(
        "occupancy/size_changes.sql",
        "occupancy/bucket_changes.sql",
        "occupancy/every_bucket.sql",
        "occupancy/occupancy.sql",
    )


def peaks_chain(number: int = MOST_PEAKS) -> list[Statement]:
    """The chain of `peaks`, after `occupancy`: the highest of each run and purgatory.

    Args:
        number: how many of each run and purgatory, at least 1.

    Raises:
        ValueError: a number below 1.
    """
    check_number(number)
    return read_chain(
        "occupancy/size_changes.sql",
        "occupancy/peaks.sql",
        number=number,
        most_named=MOST_NAMED,
        buckets_apart=BUCKETS_APART,
    )


def hot_keys_chain(number: int = 10) -> list[Statement]:
    """The chain of `hot_keys`: of each run and purgatory, the keys with the highest mean size.

    An operation with several keys counts under each. A trace without keys has no rows.

    Args:
        number: how many of each run and purgatory, at least 1.

    Raises:
        ValueError: a number below 1.
    """
    check_number(number)
    return read_chain("occupancy/key_operations.sql", "occupancy/hot_keys.sql", hot_keys=number)


def key_occupancy_chain() -> list[Statement]:
    """The chain of `key_occupancy`, of the keys in a table `hot_keys`, after its chain or given."""
    return read_chain("occupancy/key_operations.sql", "occupancy/key_occupancy.sql")
