"""The audit of traces on disk as a function: `purgatory.audit`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from purgatory.pipeline.engines.engine import RunOptions
from purgatory.pipeline.engines.run import run_opened
from purgatory.pipeline.ingest.stores import parse_location
from purgatory.pipeline.jobs.audit.anomalies import WITNESSES
from purgatory.pipeline.jobs.audit.findings import Findings, findings_of
from purgatory.pipeline.jobs.registry import JOBS
from purgatory.pipeline.signals import defer_signals

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from os import PathLike

    from purgatory.pipeline.ingest.column_mapping import GivenMapping
    from purgatory.trace.effects import GivenEffect


def audit(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    expect: Sequence[str] = (),
    witnesses: int = WITNESSES,
    effects: Iterable[GivenEffect] | None = None,
    progress: bool | None = False,
    mapping: GivenMapping = None,
    strict: bool = False,
    memory: int | None = None,
) -> Findings:
    """Audit traces in this process, without Java.

    Args:
        paths: a folder or several, each a trace or with traces in it at any depth; `s3://` as
            well.
        expect: `order`, `once`, `no-loss`, `one-writer`: anomalies against these are
            violations even where the settings permit them.
        witnesses: how many cases of each run and anomaly come with their rows.
        effects: of the service, in a single trace: for each record that it processed a tuple
            of topic, partition and offset, a client's message, or an `Effect` (`trace.effects`).
        progress, mapping, strict, memory: as `engines.engine.RunOptions` has them.

    Raises:
        TraceError: there are no traces there, or, strict, something in them is bad.
        ValueError: an unknown expectation, or a number below 0; or an effect that is none, or of
            which the consumer is unknown.
    """
    roots = [paths] if isinstance(paths, str) or hasattr(paths, "__fspath__") else list(paths)
    locations = [parse_location(os.fspath(root)) for root in roots]
    settings = RunOptions(progress=progress, mapping=mapping, strict=strict, memory=memory)
    job = JOBS["audit"]
    job.all_options({"expect": expect, "witnesses": witnesses})  # an error before anything is read
    with defer_signals():  # C code that is interrupted while it is imported raises ImportError
        from purgatory.pipeline.engines.duckdb.traces import open_traces
    with open_traces(locations, None, job, settings, effects) as opened:
        results = run_opened(job, opened, page=True, expect=expect, witnesses=witnesses)
    rows = results.rows
    return findings_of(
        rows["audit"],
        rows["witnesses"],
        results.bad_rows,
        expect,
        judged=rows["judged"],
        left_out=results.left_out,
    )
