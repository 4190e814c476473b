"""The quarantine of changes that can't be applied, and its reasons.

Such a change becomes a row of the target's table `purgatory_quarantine`, written in the transaction
that stores the next offset: each change is either pending, applied or quarantined.
"""

from __future__ import annotations

from typing import NamedTuple


class InvalidChangeError(Exception):
    """One change that can't be applied, and is to be quarantined.

    Args:
        reason: one of `REASONS`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    @property
    def stored_detail(self) -> str:
        """The detail for `Quarantined`: it may quote a record, and not every text can be stored."""
        detail = self.detail[:MAX_DETAIL].replace("\0", "\\0")
        return detail.encode("utf-8", "backslashreplace").decode()


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


class StopAtChangeError(Exception):
    """Within a transaction: a change can't be applied and stops the run; roll back.

    Args:
        group: the name of its group, if that is longer than a chunk.
    """

    def __init__(self, quarantined: Quarantined) -> None:
        super().__init__(quarantined.detail)
        self.quarantined = quarantined
        self.group: str | None = None

    @property
    def message(self) -> str:
        """The message of `QuarantineStopError`."""
        quarantined = self.quarantined
        advice = "correct it, or continue without --strict"
        if quarantined.reason == NOT_APPLIED:
            offset = f"{quarantined.topic}:{quarantined.partition}:{quarantined.offset}"
            advice = f"apply it to the target by hand, and continue with --skip-ddl {offset}"
        return (
            f"{quarantined.topic}, partition {quarantined.partition}, "
            f"offset {quarantined.offset}: {quarantined.reason}: {quarantined.detail} "
            f"(all changes before it are applied; {advice})"
        )
