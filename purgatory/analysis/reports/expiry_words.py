"""How many operations of a purgatory waited until their limit, in a sentence."""

from __future__ import annotations

from purgatory.analysis.reports.severity import Severity

_HARMLESS = {"Fetch"}
"""Purgatories in which waiting until the limit is nothing bad: no record came."""


def expired_text(purgatory: str, expired: int, operations: int) -> str:
    """How many of a purgatory's operations expired, as a sentence."""
    share = f"{expired:,} of {operations:,}"
    percent = f"({100 * expired / operations:.1f} %)"
    if purgatory in _HARMLESS:
        return f"{share} fetches {percent} got fewer bytes than they asked for, at their limit."
    if purgatory == "Produce":
        return f"{share} produces {percent} timed out."
    return f"{share} operations in the purgatory {purgatory} {percent} timed out."


def expired_severity(purgatory: str) -> Severity:
    """How bad it is that a purgatory's operations expire."""
    return Severity.NOTE if purgatory in _HARMLESS else Severity.HARM
