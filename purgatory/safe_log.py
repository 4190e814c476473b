"""The log as callbacks' faults are written to it: what it raises stops no operation half way."""

from __future__ import annotations

import structlog

from timer import safe_log

_log = structlog.get_logger("purgatory")


def log_safely(level: str, event: str, **values: object) -> None:
    """Write ``event``, unless the log can't be written: a closed pipe, a processor that raises."""
    safe_log.log_safely(_log, level, event, **values)
