"""The log of rare events and faults: an exception in it stops no task and no thread.

structlog's configuration counts, if the program configured structlog; else the standard library's.
In a program that configured neither, that one is silent but for warnings and errors, which go to
standard error: a library's text on standard output would spoil its program's.

structlog is not imported here, which takes a tenth of a second: a program that configures it has
imported it, or says by `configure_at_first_event` how to.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Set
from contextlib import suppress
from typing import Any

_at_first_event: list[Callable[[], object]] = []
"""The function that configures the log, until it did."""
_dropped: set[str] = set()


def configure_at_first_event(
    configure: Callable[[], object] | None, dropped: Set[str] = frozenset()
) -> None:
    """Have the log configured as late as its first event: most processes never write one.

    Args:
        configure: imports structlog and configures it; called by the thread of the event, and again
            if two threads have the first ones at once. It logs nothing itself. None: as it is.
        dropped: events that are not written.
    """
    _at_first_event[:] = [] if configure is None else [configure]
    _dropped.clear()
    _dropped.update(dropped)


def log_safely(logger_name: str, level: str, event: str, **values: Any) -> None:
    """Write ``event``, unless the log can't be written: a closed pipe, a processor that raises.

    Args:
        logger_name: "timer" or "purgatory".
        level: the method to call: "info", "warning" or "error".
        event: what happened.
        values: what is bound to it; ``exc_info`` is an exception whose traceback is written.
    """
    if event in _dropped:
        return
    with suppress(Exception):
        for configure in list(_at_first_event):
            configure()
            _at_first_event.clear()
        structlog: Any = sys.modules.get("structlog")
        # While another thread imports it, there is no such function yet.
        if getattr(structlog, "is_configured", bool)():
            getattr(structlog.get_logger(logger_name), level)(event, **values)
            return
        exc_info = values.pop("exc_info", None)
        # In the message for people, and beside it for formatters that write the record's fields.
        message = " ".join([event, *(f"{name}={value!r}" for name, value in values.items())])
        extra = {"event": event, **values}
        log = getattr(logging.getLogger(logger_name), level)
        log("%s", message, exc_info=exc_info, extra=extra)


def safe_repr(value: object) -> str:
    """Return ``repr(value)``, or, if that raises, the type of what it raised."""
    try:
        return repr(value)
    except Exception as error:
        # Not the exception's own repr: that may raise as well.
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
