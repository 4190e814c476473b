"""A fault as it is typed in the live view: its kind, and its arguments by their names.

answer api=Produce error=NOT_LEADER_OR_FOLLOWER topic=orders count=3
"""

from __future__ import annotations

import inspect
import shlex
import tomllib
from typing import Any

from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import KINDS, Fault, fault_of

EXAMPLE = "answer api=Produce error=NOT_LEADER_OR_FOLLOWER topic=orders count=3"


def typed_fault(text: str) -> Fault:
    """Return the fault that a line asks for.

    Raises:
        ClusterError: there is no such kind, or these are not its arguments; says what is right.
    """
    try:
        kind, *words = shlex.split(text)
    except ValueError as error:
        raise ClusterError(f"type a fault, as in {EXAMPLE} ({error})") from None
    asked: dict[str, Any] = {"kind": kind.replace("-", "_")}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ClusterError(f"{word!r}: write NAME=VALUE, as in count=3")
        asked[name] = _value(value)
    return fault_of(asked)


def suggestions() -> list[str]:
    """Return the beginning of a line for each kind, with the arguments that it can't do without."""
    return [
        " ".join([kind, *(f"{one.name}=" for one in _needed(arguments))])
        for kind, arguments in ((kind, inspect.signature(cls)) for kind, cls in KINDS.items())
    ]


def _needed(arguments: inspect.Signature) -> list[inspect.Parameter]:
    return [one for one in arguments.parameters.values() if one.default is one.empty]


def _value(text: str) -> Any:
    """Return a number or a truth value as a plan would have it, and all else as text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, int | float) else text
