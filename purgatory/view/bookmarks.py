"""Bookmarks of a run: its worst moment, its longest wait, and the first anomaly of an audit.

The audit runs in a subprocess, ``python -m purgatory.view.bookmarks FOLDER``: DuckDB computes on
threads, and a process that exits while they run aborts, but a subprocess can be ended at any time.
The subprocess prints one JSON object: ``at_us`` and ``text``, or ``why_not``.

Ground rules: a thread searches, so that the page does not wait; each bookmark is stored as soon as
it is found. The subprocess is started and ended under the lock: after `stop` none is started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from purgatory.settings.typed_duration import duration_text
from purgatory.view.time_travel import TracedRun
from purgatory.view.trace_columns import keys_at

_WORST_MOMENT = "the worst moment"
_LONGEST_WAIT = "the longest wait"
_FIRST_ANOMALY = "the first anomaly"
_SEARCH_STATUS = "still searching"
_UNDATED_RULE = "multi_writer"
"""The anomaly that is no bookmark: several producers of a partition are a setting, not an event."""
_END_S = 5.0
"""The time that the audit has to end before it is killed."""


class Bookmarks:
    """The bookmarks of a run."""

    def __init__(self, run: TracedRun) -> None:
        self._run = run
        self._worst = _bookmark(_WORST_MOMENT, why_not=_SEARCH_STATUS)
        self._longest = _bookmark(_LONGEST_WAIT, why_not=_SEARCH_STATUS)
        self._anomaly = _bookmark(_FIRST_ANOMALY, why_not=_SEARCH_STATUS)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._audit: subprocess.Popen[str] | None = None
        self._stopped = False

    def entries(self) -> list[dict[str, Any]]:
        """Return all bookmarks; ``why_not`` is the reason if one has no time."""
        return [self._worst, self._longest, self._anomaly]

    def start(self) -> None:
        """Begin to search."""
        self._thread = threading.Thread(target=self.search, name="view-bookmarks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the search."""
        with self._lock:
            self._stopped = True
            if self._audit is not None:
                self._audit.terminate()
        if self._thread is None:
            return
        self._thread.join(_END_S)
        if self._thread.is_alive() and self._audit is not None:
            self._audit.kill()

    def search(self) -> None:
        """Find the bookmarks; a failure is the reason why there is no such bookmark."""
        worst = self._run.overview["worst"] or {"why_not": "no operation was completed"}
        self._worst = _bookmark(_WORST_MOMENT, **worst)
        self._longest = _longest_wait(self._run)
        self._anomaly = _bookmark(_FIRST_ANOMALY, **self._run_audit(self._run.trace.folder))

    def _run_audit(self, folder: Path) -> dict[str, Any]:
        with self._lock:
            if self._stopped:
                return {"why_not": "the search was ended before"}
            try:
                audit = self._audit = _begin_audit(folder)
            except OSError as error:
                return {"why_not": f"the audit can't be started: {error.strerror}"}
        output, _ = audit.communicate()
        try:
            anomaly: dict[str, Any] = json.loads(output)
        except ValueError:
            return {"why_not": f"the audit ended with status {audit.returncode}"}
        return anomaly


def _bookmark(
    name: str,
    at_us: int | None = None,
    text: str = "",
    operation: int | None = None,
    why_not: str | None = None,
) -> dict[str, Any]:
    return {
        "name": name,
        "at_us": at_us,
        "text": text,
        "operation": operation,
        "why_not": why_not,
    }


def _longest_wait(run: TracedRun) -> dict[str, Any]:
    completed = run.timeline.completed
    if not len(completed.wait_us):
        return _bookmark(_LONGEST_WAIT, why_not="no operation was completed")
    wait_us = max(completed.wait_us)
    row = list(completed.wait_us).index(wait_us)
    keys = keys_at(completed.keys, row)
    key_text = f" on {', '.join(keys[:3])}{' and others' if len(keys) > 3 else ''}" if keys else ""
    return _bookmark(
        _LONGEST_WAIT,
        completed.time_us[row] - wait_us,
        f"an operation of a {completed.kind.at(row)} waited {duration_text(wait_us)} in "
        f"{completed.purgatory.at(row)}{key_text}",
        completed.ids[row],
    )


def _begin_audit(folder: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", "purgatory.view.bookmarks", str(folder.resolve())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C goes to the server alone, which ends this process
    )


def first_anomaly(folder: Path) -> dict[str, object]:
    """Return time and text of the first anomaly, or why there is none."""
    try:
        from purgatory.pipeline.engines.trace_audit import audit

        findings = audit(folder)
    except ModuleNotFoundError as error:
        return {"why_not": f"{error.name} is missing: pip install 'kafka-purgatory[analysis]'"}
    except Exception as error:
        return {"why_not": str(error).partition("\n")[0] or type(error).__name__}
    selected = findings.violations or [
        finding for finding in findings if finding.anomaly != _UNDATED_RULE
    ]
    first: tuple[int, str] | None = None
    for finding in selected:
        for witness in finding.witnesses:
            anomaly = finding.anomaly.replace("_", " ")
            text = f"{anomaly} in {finding.group}: {finding.count:,} ({finding.verdict})"
            at_us = witness["time_us"]
            if at_us is not None and (first is None or at_us < first[0]):
                first = at_us, text
    if first is None:
        return {"why_not": "the audit found no anomaly that has a moment"}
    return {"at_us": first[0], "text": first[1]}


if __name__ == "__main__":
    from purgatory.pipeline.signals import exit_on_signal

    with exit_on_signal():
        print(json.dumps(first_anomaly(Path(sys.argv[1]))))
