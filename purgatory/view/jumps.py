"""Where a look at a run may begin: its longest wait, and the first anomaly that an audit finds.

Ground rules: a thread of its own looks, so that the page need not wait; each jump that it finds is
put in its place by one store, and read as it is then. The audit's process is started and ended
under the lock: once there was `stop` none is started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from purgatory.view.parked_operations import keys_at
from purgatory.view.traced_run import TracedRun

_LOOKING = "still looking"
_END_S = 5.0
"""How long the audit may take to end, before it is killed."""


class Jumps:
    """The jumps of a run.

    Args:
        run: which.
    """

    def __init__(self, run: TracedRun) -> None:
        self._run = run
        self._longest = _jump("the longest wait", why_not=_LOOKING)
        self._anomaly = _jump("the first anomaly", why_not=_LOOKING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._audit: subprocess.Popen[str] | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self.look, name="view-jumps", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more; what has been begun is ended."""
        with self._lock:
            self._stopped = True
            if self._audit is not None:
                self._audit.terminate()
        if self._thread is None:
            return
        self._thread.join(_END_S)
        if self._thread.is_alive() and self._audit is not None:
            self._audit.kill()

    def look(self) -> None:
        """Look; what goes wrong is told as the reason why there is no such jump."""
        self._longest = _longest_wait(self._run)
        self._anomaly = _jump("the first anomaly", **self._audited(self._run.trace.folder))

    def _audited(self, folder: Path) -> dict[str, Any]:
        with self._lock:
            if self._stopped:
                return {"why_not": "it was ended before"}
            try:
                audit = self._audit = _begin_audit(folder)
            except OSError as error:
                return {"why_not": f"the audit can't be started: {error.strerror}"}
        answer, _ = audit.communicate()
        try:
            told: dict[str, Any] = json.loads(answer)
        except ValueError:
            return {"why_not": f"the audit ended with status {audit.returncode}"}
        return told

    def known(self) -> list[dict[str, Any]]:
        """Return what is found by now."""
        return [self._longest, self._anomaly]


def _begin_audit(folder: Path) -> subprocess.Popen[str]:
    where = os.pathsep.join(place or os.getcwd() for place in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", "purgatory.view.first_anomaly", str(folder.resolve())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": where},
        start_new_session=True,  # Ctrl-C is for the process that serves: it ends this one
    )


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
