"""What must hold at the end of a run, whatever went wrong in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_NO_LOSS = ("all", "idempotent", "one-in-flight")


def broken_promises(summary: Mapping[str, Any]) -> Iterator[str]:
    """What does not hold, of what the groups of producers and consumers are promised.

    The run's own invariants have been checked by then.
    """
    if not summary["drained"]:
        yield "not everything was settled and read at the end"
    producers = {row["group"]: row for row in summary["producers"]}
    for group in _NO_LOSS:
        counts = producers[group]
        if counts["lost"]:
            yield f"{group}: {counts['lost']} records were acknowledged, and are lost"
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
            yield f"{row['group']}: {row['skipped']} records were passed over"
