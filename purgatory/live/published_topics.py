"""The names of the topics that rows are published to."""

from __future__ import annotations

import re

from purgatory.trace.trace_schema import REQUIRED_TABLES

PARTITIONS = 4
"""How many partitions each of the topics gets that are made here."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,200}")


def published_topics(prefix: str) -> dict[str, str]:
    """Return the topic of each table: ``PREFIX.operations``, ``PREFIX.sends``, ``PREFIX.reads``.

    Raises:
        ValueError: the prefix can't begin a topic's name.
    """
    if _LEGAL.fullmatch(prefix) is None:
        raise ValueError(
            f"{prefix!r} can't begin the name of a topic: use letters, digits, dots, dashes and "
            "underscores, at most 200"
        )
    return {table: f"{prefix}.{table}" for table in REQUIRED_TABLES}
