"""What the purgatory refuses."""

from __future__ import annotations


class PurgatoryClosedError(RuntimeError):
    """The purgatory was closed: it takes no more operations, and failed what it was told to."""


class OperationReusedError(RuntimeError):
    """An operation was submitted a second time: each waits once, in one purgatory."""


class PurgatoryFullError(RuntimeError):
    """As many operations wait as the purgatory's ``max_pending`` allows."""


class WaitCancelledError(RuntimeError):
    """Somebody else took off what was waited for, by ``cancel_for_key``."""
