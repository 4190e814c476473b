"""The log as faults are written to it: what it raises stops no operation half way, and in a program
that configured no log nothing is printed to standard output."""

from __future__ import annotations

from typing import Any

from timer import safe_log


def log_safely(level: str, event: str, **values: Any) -> None:
    """Write ``event`` to the logger "purgatory", unless the log can't be written."""
    safe_log.log_safely("purgatory", level, event, **values)


class Logger:
    """Writes events to the logger of this name, as ``timer.safe_log`` says."""

    def __init__(self, name: str) -> None:
        self._name = name

    def info(self, event: str, **values: Any) -> None:
        """Write what somebody may want to know."""
        safe_log.log_safely(self._name, "info", event, **values)

    def warning(self, event: str, **values: Any) -> None:
        """Write what somebody should look at."""
        safe_log.log_safely(self._name, "warning", event, **values)

    def error(self, event: str, **values: Any) -> None:
        """Write what went wrong."""
        safe_log.log_safely(self._name, "error", event, **values)
