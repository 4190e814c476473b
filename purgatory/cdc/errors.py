"""Errors that end a run of `apply`; `quarantine` has those of one change."""

from __future__ import annotations


class ChangesError(Exception):
    """Applying can't continue; the message says what is wrong, where, and how to correct it."""

    is_transient = False
    """Whether the error is transient: a restart may succeed."""


class TransientError(ChangesError):
    """A transient error: brokers that don't respond, a worker that was killed."""

    is_transient = True


class TargetError(ChangesError):
    """The target database can't be reached or used."""


class TargetUnavailableError(TargetError):
    """The target database is temporarily unreachable."""

    is_transient = True


class QuarantineStopError(ChangesError):
    """A change that can't be applied stopped the run; all changes before it are committed."""
