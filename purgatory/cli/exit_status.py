"""The exit statuses of what runs on and on: a supervisor can tell from them what to do.

`docs/apply.md` has them as a table, with a unit of systemd that goes by them.
"""

from __future__ import annotations

BAD_CHANGE = 1
"""A change that can't go on its way: somebody has to look at it."""
BAD_INPUT = 2
"""Something that was asked for is not as it must be: the same would fail again."""
FAULT_PASSES = 75
"""A fault that may pass: start the same again. `EX_TEMPFAIL` of sysexits.h."""
INTERRUPTED = 130
"""Ctrl-C, as shells have it."""


def status_of(error: Exception) -> int:
    """The exit status for an error of the pipeline, of a change log or of a capture."""
    return FAULT_PASSES if getattr(error, "passes", False) else BAD_INPUT
