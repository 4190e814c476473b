"""The whole analysis, by whichever engine is chosen: traces in, tables and a page out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from purgatory.analysis.analysis_results import Analysis
from purgatory.analysis.result_folder import REPORT
from purgatory.analysis.running import RunningAnywhere
from purgatory.analysis.uris.places import Place, Uri
from purgatory.analysis.which_engine import Engine


def analyze(
    roots: Sequence[Place],
    out: Path | Uri,
    *,
    engine: Engine = "spark",
    notes: Sequence[str] = (),
    master: str = "local[*]",
    **how: Unpack[RunningAnywhere],
) -> Analysis:
    """Analyze all traces in some folders.

    Args:
        roots: folders that are a trace each, or contain traces; URIs of such as well.
        out: the folder to make, at a URI as well: it gets Parquet in a folder per
            table, bad rows and files in `quarantine`, and `report.html`.
        engine: what computes; only that one is imported.
        notes: sections to stand in the report before those of the runs, as HTML.
        master: the Spark master; DuckDB has none.
        how: as `RunningAnywhere` has it.

    Raises:
        PipelineError: the traces, the place for the results or the session are not as they must
            be; in that case `out` is as it was.
    """
    if engine == "spark":
        from purgatory.analysis import write_analysis

        result = write_analysis.tell_analysis(roots, out, notes=notes, master=master, **how)
    else:
        from purgatory.analysis.duckdb_engine import analysis_folders

        result = analysis_folders.tell_analysis(roots, out, notes=notes, **how)
    return replace(result, report=out / REPORT)
