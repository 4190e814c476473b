"""What a query of Spark failed with, in one line, and whether that may pass."""

from __future__ import annotations

from typing import NamedTuple

_OURS = "purgatory."
_PASSING = (".BrokerAwayError", ".FaultError")
"""How the names of this project's errors end that have `passes`."""


class QueryFailure(NamedTuple):
    """Why a query failed.

    Args:
        reason: one line.
        passes: whether the same query may succeed when it's started again.
    """

    reason: str
    passes: bool


def query_failure(error: Exception) -> QueryFailure:
    """The line that says most: the last one of this project's that failed, or the first of all.

    What this project didn't find itself, such as a worker that was killed, may pass.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(_OURS) and "Error:" in line]
    if not named:
        return QueryFailure(lines[0] if lines else type(error).__name__, passes=True)
    name, _, reason = named[-1].partition(":")
    return QueryFailure(reason.strip(), passes=name.endswith(_PASSING))
