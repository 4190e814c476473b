"""Why a change is set aside, and what is kept of it.

A change that can't be applied is a row of the table `purgatory_quarantine` of the target, written
in the transaction that stores the offset behind it: it is either still to come, or applied, or
there.
"""

from __future__ import annotations

from typing import NamedTuple

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
