"""Errors of change data capture, and the quarantine's reasons.

A change that can't be applied becomes a row of the target's table `purgatory_quarantine`, written
in the transaction that stores the next offset: each change is either pending, applied or
quarantined.
"""

from __future__ import annotations

from typing import NamedTuple


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


class InvalidChangeError(Exception):
    """One change that can't be applied, and is to be quarantined.

    Args:
        reason: one of `REASONS`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


MALFORMED = "malformed"
"""No JSON, or in no format that is read."""
MISSING_KEY = "missing key"
"""No primary key is known, or the row lacks a column of it."""
UNKNOWN_TABLE = "unknown table"
"""The target lacks the table and may not create it, or the table belongs to another one."""
UNKNOWN_COLUMN = "unknown column"
"""The target's table lacks a column and may not add it."""
WRONG_TYPE = "wrong type"
"""A value does not fit the type of its column."""
TOO_LARGE = "value too large"
"""A value or the whole record exceeds a limit."""
REJECTED = "refused"
"""The database refused the row for another reason, such as a constraint."""
NOT_APPLIED = "not applied"
"""A schema change that a person has to apply."""

REASONS = (
    MALFORMED,
    MISSING_KEY,
    UNKNOWN_TABLE,
    UNKNOWN_COLUMN,
    WRONG_TYPE,
    TOO_LARGE,
    REJECTED,
    NOT_APPLIED,
)

MAX_DETAIL = 500
"""Characters of `Quarantined.detail`, at most."""


class Quarantined(NamedTuple):
    """A row of `purgatory_quarantine`; the value is the record's."""

    topic: str
    partition: int
    offset: int
    reason: str
    detail: str
    value: bytes | None
