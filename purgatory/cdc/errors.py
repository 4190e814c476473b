"""Errors of change data capture, and the quarantine's reasons.

A change that can't be applied becomes a row of the target's table `purgatory_quarantine`, written
in the transaction that stores the next offset: each change is either pending, applied or
quarantined.
"""

from __future__ import annotations

from typing import NamedTuple


class ChangesError(Exception):
    """The work can't go on; the message says what was wrong, where, and what would be right."""

    passes = False
    """Whether the same may succeed when it's started again."""


class FaultError(ChangesError):
    """What broke off may pass: brokers that don't answer, a worker that was killed."""

    passes = True


class TargetError(ChangesError):
    """The target database can't be reached or used."""


class TargetGoneError(TargetError):
    """The target database is away, and may come back."""

    passes = True


class StoppedOnBadError(ChangesError):
    """A change could not be applied, and it was asked to stop there; what came before it is in."""


class BadChangeError(Exception):
    """One change that can't be applied; it belongs into the quarantine.

    Args:
        reason: one of the constants of `set_aside`.
        detail: what exactly, in a few words.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


MALFORMED = "malformed"
"""No JSON, or not in Maxwell's form."""
MISSING_KEY = "missing key"
"""No primary key is known, or the row lacks a column of it."""
UNKNOWN_TABLE = "unknown table"
"""The target lacks the table, and it may not be made, or it is another one."""
UNKNOWN_COLUMN = "unknown column"
"""The target's table lacks a column, and it may not be added."""
WRONG_TYPE = "wrong type"
"""A value does not fit the type of its column."""
TOO_LARGE = "value too large"
"""A value or the whole record is longer, or greater, than there is room for."""
REFUSED = "refused"
"""The database refused the row for another reason, such as a constraint."""
NOT_APPLIED = "not applied"
"""A change of the schema that would destroy data: it is left to a person."""

REASONS = (
    MALFORMED,
    MISSING_KEY,
    UNKNOWN_TABLE,
    UNKNOWN_COLUMN,
    WRONG_TYPE,
    TOO_LARGE,
    REFUSED,
    NOT_APPLIED,
)

MOST_DETAIL = 500
"""How many characters of an explanation are kept."""


class Quarantined(NamedTuple):
    """One change that was set aside."""

    topic: str
    partition: int
    offset: int
    reason: str
    detail: str
    value: bytes | None
    """The record's value as it came."""
