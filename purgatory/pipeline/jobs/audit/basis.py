"""The basis of an audit's verdict, in words: rows that were judged, left out, or are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from purgatory.pipeline.jobs.audit.anomalies import INDETERMINATE, NO_EFFECTS
from purgatory.pipeline.result_rows import counted

JUDGED = ("sent", "acknowledged", "read", "committed", "applied")
"""The numbers of rows in the table `judged`."""

_SHOWN_BY: Mapping[str, str] = {
    NO_EFFECTS: "; applied(message), effects= or the table effects would show it",
    "no effects in the trace": ": the table effects would show it",
    "no commits in the trace": ": the table commits would show it",
    "no transactions in the trace": ": the table transactions would show it",
}


def nothing_judged(judged: Mapping[str, Any]) -> bool:
    """Whether a verdict rests on no row at all."""
    return not any(judged.get(name) for name in JUDGED)


def operations_of(waits: Sequence[Mapping[str, Any]]) -> int:
    """The number of operations in the rows of the table `waits` of one run."""
    return sum(
        row["operations"] for row in waits if row["kind"] == "all" and row["outcome"] != "all"
    )


def basis_text(
    judged: Mapping[str, Any],
    left_out: Sequence[Mapping[str, Any]] = (),
    unchecked: Mapping[str, str] | None = None,
    operations: int = 0,
) -> str:
    """The basis of a verdict, in a line.

    Args:
        judged: numbers by the names of `JUDGED`.
        left_out: bad rows, counted by `table` and `reason`.
        unchecked: anomalies that were not looked for, and why.
        operations: their number, where waits were computed, too.
    """
    if nothing_judged(judged) and not operations:
        why = left_out_text(left_out) + " left out" if left_out else "the trace has no rows"
        return f"nothing was judged: {why}"
    numbers = ", ".join(f"{judged.get(name, 0):,} {name}" for name in JUDGED)
    waited = f"{counted(operations, 'operation')}, " if operations else ""
    parts = [f"judged: {waited}{numbers}"]
    if left_out:
        parts.append(f"left out: {left_out_text(left_out)}")
    reasons = by_reason(unchecked or {})
    if reasons:
        texts = (f"{', '.join(anomalies)} ({reason})" for reason, anomalies in reasons.items())
        parts.append(f"not looked for: {', '.join(texts)}")
    return "; ".join(parts)


def left_out_text(left_out: Sequence[Mapping[str, Any]]) -> str:
    """Bad rows and files in words: "3 rows (sends: wrong type)"."""
    return ", ".join(
        f"{counted(row['rows'], 'row') if row['rows'] else counted(row['files'], 'file')} "
        f"({row['table'] or 'run.json'}: {row['reason']})"
        for row in left_out
    )


def by_reason(unchecked: Mapping[str, str]) -> dict[str, list[str]]:
    """Anomalies that were not looked for by the reason, which says what would show them."""
    reasons: dict[str, list[str]] = {}
    for anomaly, reason in unchecked.items():
        reasons.setdefault(f"{reason}{_SHOWN_BY.get(reason, '')}", []).append(anomaly)
    return reasons


def unchecked_of(audit: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The anomalies that were not looked for, and why, from rows of the table `audit`."""
    return {
        row["anomaly"]: row["setting"]
        for row in audit
        if not row["count"] and row["verdict"] == INDETERMINATE
    }
