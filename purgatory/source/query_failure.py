"""What a query of Spark failed with, in one line, and whether that may pass."""

from __future__ import annotations

import re
from typing import NamedTuple

from purgatory.source.data_loss import advised

_OURS = "purgatory."
_OF_PYTHON = re.compile(r"(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): .")
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


def query_failure(error: Exception, if_lost: str) -> QueryFailure:
    """The line that says most: of this project's errors the last, else of Python's, else the first.

    What this project didn't find itself, such as a worker that was killed, may pass.

    Args:
        error: of the query.
        if_lost: what to do where records are gone that were to be read.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(_OURS) and "Error:" in line]
    if not named:
        raised = [line for line in lines if _OF_PYTHON.match(line)]
        reason = (raised[-1:] or lines[:1] or [type(error).__name__])[0]
        return QueryFailure(reason, passes=True)
    name, _, reason = named[-1].partition(":")
    return QueryFailure(advised(reason.strip(), if_lost), passes=name.endswith(_PASSING))
