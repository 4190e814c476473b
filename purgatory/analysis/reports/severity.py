"""A sentence of a report, how bad it is, and where the page shows what it says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How bad something is, the worst first."""

    INCOMPLETE = 0
    VIOLATION = 1
    HARM = 2
    DOUBT = 3
    FINE = 4
    NOTE = 5


@dataclass(frozen=True)
class Said:
    """A sentence, or two that belong together.

    Attributes:
        text: plain text.
        severity: how bad it is.
        section: the section of the page that shows it.
        table: the table of results that has its rows; that of the section's name without one.
    """

    text: str
    severity: Severity
    section: str
    table: str | None = None
