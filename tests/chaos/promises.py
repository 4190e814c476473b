"""The guarantees that must hold at the end of a run, whatever faults it had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_NO_LOSS = ("all", "idempotent", "one-in-flight")


def broken_promises(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield each broken guarantee of the groups of producers and consumers.

    The run has checked its own invariants by then.
    """
    if not summary["drained"]:
        yield "not every request was completed, or not every record read, at the end"
    producers = {row["group"]: row for row in summary["producers"]}
    for group in _NO_LOSS:
        counts = producers[group]
        if counts["lost"]:
            yield f"{group}: {counts['lost']} acknowledged records are lost"
        if counts["acknowledged"] != counts["records"]:
            yield f"{group}: {counts['records'] - counts['acknowledged']} were not acknowledged"
    for group, name in (
        ("one-in-flight", "reorderings"),
        ("idempotent", "reorderings"),
        ("idempotent", "duplicates"),
    ):
        if producers[group][name]:
            yield f"{group}: {producers[group][name]} {name}"
    for row in summary["consumers"]:
        if row["skipped"]:
            yield f"{row['group']}: {row['skipped']} records were skipped"
