"""The log as faults are written to it: what it raises stops no task and no thread."""

from __future__ import annotations

from contextlib import suppress
from typing import Any


def log_safely(log: Any, level: str, event: str, **values: object) -> None:
    """Write ``event``, unless the log can't be written: a closed pipe, a processor that raises.

    Args:
        log: a structlog logger.
        level: the method to call: "warning".
        event: what happened.
        values: what is bound to it.
    """
    with suppress(Exception):
        getattr(log, level)(event, **values)


def safe_repr(value: object) -> str:
    """Return ``repr(value)``, or, if that raises, what it raised."""
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__} whose repr raised {error!r}>"
