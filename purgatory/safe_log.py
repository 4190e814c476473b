"""The log as callbacks' faults are written to it: what it raises stops no operation half way."""

from __future__ import annotations

from typing import Any

from timer import safe_log


def log_safely(level: str, event: str, **values: Any) -> None:
    """Write ``event`` to the logger "purgatory", unless the log can't be written."""
    safe_log.log_safely("purgatory", level, event, **values)
