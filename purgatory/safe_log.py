"""The log as callbacks' faults are written to it: what it raises stops no operation half way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import structlog

_log = structlog.get_logger("purgatory")


def log_safely(level: str, event: str, **values: object) -> None:
    """Write ``event``, unless the log can't be written: a closed pipe, a processor that raises."""
    with suppress(Exception):
        write: Callable[..., object] = getattr(_log, level)
        write(event, **values)
