"""Where a look at a run may begin: its longest wait, and the first anomaly that an audit finds.

Ground rules: a thread of its own looks, so that the page need not wait; each jump that it finds is
put in its place by one store, and read as it is then.
"""

from __future__ import annotations

import threading
from typing import Any

from purgatory.view.parked_operations import keys_at
from purgatory.view.traced_run import TracedRun

_LOOKING = "still looking"
_PERMITTED_ANYWHERE = "multi_writer"
"""That several producers write to a partition is a setting: it has no moment."""


class Jumps:
    """The jumps of a run.

    Args:
        run: which.
    """

    def __init__(self, run: TracedRun) -> None:
        self._run = run
        self._longest = _jump("the longest wait", why_not=_LOOKING)
        self._anomaly = _jump("the first anomaly", why_not=_LOOKING)

    def start(self) -> None:
        """Begin to look. The process may end meanwhile."""
        threading.Thread(target=self.look, name="view-jumps", daemon=True).start()

    def look(self) -> None:
        """Look; what goes wrong is told as the reason why there is no such jump."""
        self._longest = _longest_wait(self._run)
        try:
            self._anomaly = _first_anomaly(self._run)
        except Exception as error:
            why_not = str(error).partition("\n")[0] or type(error).__name__
            self._anomaly = _jump("the first anomaly", why_not=why_not)

    def known(self) -> list[dict[str, Any]]:
        """Return what is found by now."""
        return [self._longest, self._anomaly]


def _jump(
    name: str,
    at_us: int | None = None,
    text: str = "",
    operation: int | None = None,
    why_not: str | None = None,
) -> dict[str, Any]:
    return {"name": name, "at_us": at_us, "text": text, "operation": operation, "why_not": why_not}


def _longest_wait(run: TracedRun) -> dict[str, Any]:
    settled = run.timeline.settled
    name = "the longest wait"
    if not len(settled.wait_us):
        return _jump(name, why_not="no operation was settled")
    wait_us = max(settled.wait_us)
    row = list(settled.wait_us).index(wait_us)
    keys = keys_at(settled.keys, row)
    on = f" on {', '.join(keys[:3])}{' and others' if len(keys) > 3 else ''}" if keys else ""
    return _jump(
        name,
        settled.time_us[row] - wait_us,
        f"an operation of a {settled.kind.at(row)} waited {wait_us / 1_000:,.2f} ms in "
        f"{settled.purgatory.at(row)}{on}",
        settled.ids[row],
    )


def _first_anomaly(run: TracedRun) -> dict[str, Any]:
    from purgatory.analysis.duckdb_engine.audit_folders import audit

    name = "the first anomaly"
    found = audit(run.trace.folder)
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
        return _jump(name, why_not="the audit found no anomaly that has a moment")
    return _jump(name, *first)
