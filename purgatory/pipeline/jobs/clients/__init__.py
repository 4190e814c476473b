"""Requests as clients saw them: the chains of `latencies`, `attempts` and `throughput`.

They read `sends`, `reads`, and for `throughput` the small table `windows` (`run_spans.WINDOWS`) of
the runs that are wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory.pipeline.jobs.chain import read_chain
from purgatory.trace.percentiles import DECIMALS

if TYPE_CHECKING:
    from purgatory.pipeline.jobs.chain import Statement


def latencies_chain() -> list[Statement]:
    """The chain of `latencies`: a row per run, group of producers and span.

    An attempt counts for each record in it. A span whose times the trace lacks has no row.
    Percentiles are those of rounded times (`rounded_waits`).
    """
    return read_chain("clients/latencies.sql", decimals=DECIMALS)


def attempts_chain() -> list[Statement]:
    """The chain of `attempts`: a row per run, group of producers, outcome and error of an attempt.

    `all` stands for all outcomes and `*` for all errors; a record of which attempts had several
    outcomes counts once in each of them, and once in the row over all.
    """
    return read_chain("clients/attempts.sql")


def throughput_chain() -> list[Statement]:
    """The chain of `throughput`: a row per run, window, kind of client, group and partition.

    Records of producers count when they were acknowledged, those of consumers when they were read.
    """
    return read_chain("clients/throughput.sql")
