"""What the purgatory refuses."""

from __future__ import annotations

from asyncio import CancelledError

FAULTS = (Exception, CancelledError)
"""What a callback raises of its own; all else is an interrupt, and goes on to the caller.

A CancelledError can't be one: tasks are interrupted by it where they wait, which no callback does.
It comes of a condition that asks a cancelled future for its result, and let through it would cancel
the task that only told an event.
"""


class PurgatoryClosedError(RuntimeError):
    """The purgatory was closed: it takes no more operations, and failed what it was told to."""


class OperationReusedError(RuntimeError):
    """An operation was submitted a second time: each waits once, in one purgatory."""


class PurgatoryFullError(RuntimeError):
    """As many operations wait as the purgatory's ``max_pending`` allows."""


class WaitCancelledError(RuntimeError):
    """Somebody else took off what was waited for, by ``cancel_for_key``."""
