"""The first anomaly that an audit finds in a trace, as a program: ``python -m ... FOLDER``.

It is a process of its own, for DuckDB computes on threads: a process that ends while these are at
work aborts. This one can be ended at any time.

It prints one JSON object: ``at_us`` and ``text``, or ``why_not``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from purgatory.pipeline.engines.termination import ended_by_sigterm

_PERMITTED_ANYWHERE = "multi_writer"
"""That several producers write to a partition is a setting: it has no moment."""


def first_anomaly(folder: Path) -> dict[str, object]:
    """Return the moment and the words of the first anomaly, or why there is none."""
    from purgatory.pipeline.engines.duckdb.audit import audit

    found = audit(folder)
    looked_at = found.violations or [one for one in found if one.anomaly != _PERMITTED_ANYWHERE]
    first: tuple[int, str] | None = None
    for finding in looked_at:
        for witness in finding.witnesses:
            words = finding.anomaly.replace("_", " ")
            text = f"{words} in {finding.group}: {finding.count:,} ({finding.verdict})"
            at_us = witness["time_us"]
            if at_us is not None and (first is None or at_us < first[0]):
                first = at_us, text
    if first is None:
        return {"why_not": "the audit found no anomaly that has a moment"}
    return {"at_us": first[0], "text": first[1]}


def told_of(folder: Path) -> dict[str, object]:
    """Return the same; what goes wrong is the reason why there is none."""
    try:
        return first_anomaly(folder)
    except ModuleNotFoundError as error:
        return {"why_not": f"{error.name} is missing: pip install 'kafka-purgatory[analysis]'"}
    except Exception as error:
        return {"why_not": str(error).partition("\n")[0] or type(error).__name__}


if __name__ == "__main__":
    with ended_by_sigterm():
        print(json.dumps(told_of(Path(sys.argv[1]))))
