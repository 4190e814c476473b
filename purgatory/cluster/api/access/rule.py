"""What a rule of access is made of.

A rule says who may make a request as a whole, which of its parts are refused, and what of an answer
a client may see. What is refused never gets to the API's handler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from purgatory.cluster.api.access.asking import Ask

ALLOWED = 0


def nobody_is_refused(ask: Ask) -> int:
    """For requests that anybody may make, or whose parts alone are refused."""
    return ALLOWED


@dataclass(frozen=True)
class Parts:
    """A list of a request, each element of which is allowed or refused by itself.

    Args:
        asked: the list's name in the request.
        refuses: returns a code for an element, 0 if it is allowed.
        others: the code of the elements that are allowed, where one that isn't keeps all of them
            from being done; None where each succeeds by itself.
    """

    asked: str
    refuses: Callable[[Ask, Any], int]
    others: int | None = None


@dataclass(frozen=True)
class Seen:
    """A list of an answer, of which a client sees only some elements.

    Args:
        answered: the list's name.
        shown: returns an element, or what of it may be seen; None if nothing.
    """

    answered: str
    shown: Callable[[Ask, Mapping[str, Any]], Mapping[str, Any] | None]


@dataclass(frozen=True)
class Rule:
    """Who may ask an API for what.

    Args:
        whole: returns a code if the request is refused as a whole, 0 if not.
        parts: what is refused of it.
        seen: what of the answer is seen.
        answers_none: whether the handler has something to answer where all parts are refused.
    """

    whole: Callable[[Ask], int] = nobody_is_refused
    parts: Sequence[Parts] = ()
    seen: Sequence[Seen] = ()
    answers_none: bool = False
