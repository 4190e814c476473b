"""How many operations of a purgatory waited until their limit, in a sentence, and what that means.

It is not always bad: some answer with what there is, and some always wait until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from purgatory.analysis.reports.severity import Severity


class _Words(NamedTuple):
    operations: str
    expired: str
    severity: Severity = Severity.HARM


_OF_PURGATORIES: Mapping[str, _Words] = {
    "Produce": _Words("produces", "timed out."),
    "Fetch": _Words(
        "fetches", "got fewer bytes than they asked for, at their limit.", Severity.NOTE
    ),
    "ShareFetch": _Words(
        "share fetches", "got fewer bytes than they asked for, at their limit.", Severity.NOTE
    ),
    "Rebalance": _Words(
        "rebalances",
        "waited until their limit: the first of a group always does; a later one goes on without "
        "who has not joined.",
        Severity.NOTE,
    ),
    "Sync": _Words(
        "syncs", "waited until their limit: who has not asked for its assignment is out."
    ),
    "Heartbeat": _Words(
        "waits for members", "reached their limit: who gives no sign of life is out of its group."
    ),
    "TransactionTimeout": _Words(
        "waits of transactions",
        "reached their limit: one that is open is aborted, of one that is not the id is forgotten.",
    ),
    "AcquisitionLock": _Words(
        "locks of records", "ran out: who asks next is given the records again."
    ),
}


def expired_text(purgatory: str, expired: int, operations: int) -> str:
    """How many of a purgatory's operations expired, as a sentence."""
    words = _words(purgatory)
    share = f"{expired:,} of {operations:,} {words.operations}"
    return f"{share} ({_percent(expired, operations)}) {words.expired}"


def expired_severity(purgatory: str) -> Severity:
    """How bad it is that a purgatory's operations expire."""
    return _words(purgatory).severity


def _words(purgatory: str) -> _Words:
    otherwise = _Words(f"operations in the purgatory {purgatory}", "timed out.")
    return _OF_PURGATORIES.get(purgatory, otherwise)


def _percent(part: int, whole: int) -> str:
    """A share that is not nothing, and so is not told as 0.0 %."""
    percent = 100 * part / whole
    return f"{percent:.1f} %" if percent >= 0.1 else f"{percent:.1g} %"
