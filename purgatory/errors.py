"""What the purgatory refuses."""

from __future__ import annotations


class PurgatoryClosedError(RuntimeError):
    """The purgatory was closed: it takes no more operations, and failed what it was told to."""


class OperationReusedError(RuntimeError):
    """An operation was submitted a second time: each waits once, in one purgatory."""
