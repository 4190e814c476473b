"""What the arguments of faults have to be, by their names: a name means the same everywhere."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from purgatory.kafka.error_numbers import ERROR_NUMBERS
from purgatory.kafka.errors import ClusterError

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def check_arguments(values: Mapping[str, Any]) -> None:
    """Check each argument by itself.

    Raises:
        ClusterError: one is wrong; says what would be right.
    """
    for name, value in values.items():
        is_right, right = _CHECKS.get(name, (None, ""))
        if is_right is not None and not is_right(value):
            raise ClusterError(f"{name}={value!r}: {right}")
    if "error" in values:
        error_number(values["error"])


def error_number(name: object) -> int:
    """Return the number of one of Kafka's errors, such as "NOT_LEADER_OR_FOLLOWER".

    Raises:
        ClusterError: there is none of that name, or it is no error; says what would be right.
    """
    number = ERROR_NUMBERS.get(name) if isinstance(name, str) else None
    if number is None:
        right = nearest(str(name).upper().replace("-", "_"), list(ERROR_NUMBERS))
        raise ClusterError(f"error={name!r}: Kafka has no such error; {right}")
    if number == ERROR_NUMBERS["NONE"]:
        raise ClusterError("error='NONE': that is no error; REQUEST_TIMED_OUT would be one")
    return number


def nearest(name: str, names: list[str]) -> str:
    """Return which ones of ``names`` are most like ``name``, in words."""
    return f"the nearest are {', '.join(difflib.get_close_matches(name, names, 3, 0.0))}"


def api_name(name: str) -> str:
    """Return an API's name as it is compared: "list_offsets" for "ListOffsets"."""
    return _CAPITAL.sub("_", name).replace("-", "_").lower()


def kafka_api_name(name: str) -> str:
    """Return an API's name as Kafka writes it: "ListOffsets" for "list_offsets"."""
    return "".join(part.capitalize() for part in name.split("_"))


def _is_number(value: Any) -> bool:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and abs(value) <= sys.float_info.max


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _text_or_none(right: str) -> tuple[Callable[[Any], bool], str]:
    return (lambda it: it is None or isinstance(it, str)), right


_MILLISECONDS = (lambda it: _is_number(it) and it >= 0, "a number of milliseconds, 0 or more")
_MILLISECONDS_OR_NONE = (
    lambda it: it is None or (_is_number(it) and it >= 0),
    "a number of milliseconds, 0 or more",
)
_YES_OR_NO = (lambda it: isinstance(it, bool), "true or false")

_LONGEST_JUMP_MS = 50 * 365 * 24 * 3_600_000
"""Back from today that is still after 1970, before which records have no times."""

_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "for_s": (
        lambda it: it is None or (_is_number(it) and it > 0),
        "a number of seconds above 0, or left out for no end",
    ),
    "lag_ms": _MILLISECONDS,
    "by_ms": _MILLISECONDS,
    "to_ms": _MILLISECONDS_OR_NONE,
    "p75_ms": _MILLISECONDS_OR_NONE,
    "throttle_ms": (
        lambda it: _is_whole(it, 1) and it < 2**31,
        "a whole number of milliseconds from 1 to 2147483647",
    ),
    "jump_ms": (
        lambda it: type(it) is int and 0 < abs(it) <= _LONGEST_JUMP_MS,
        "a whole number of milliseconds: forward, or back below 0, and 50 years at most",
    ),
    "api": _text_or_none('the name of an API, such as "Produce", or left out for all'),
    "client_id": _text_or_none("the client.id of a client"),
    "group_id": _text_or_none("the name of a group"),
    "transactional_id": _text_or_none("the transactional.id of a producer"),
    "topic": _text_or_none("the name of a topic"),
    "partition": (lambda it: it is None or _is_whole(it, 0), "the number of a partition, from 0"),
    "count": (
        lambda it: it is None or _is_whole(it, 1),
        "a whole number from 1 on, or left out for all",
    ),
    "seed": (lambda it: it is None or type(it) is int, "a whole number, or left out"),
    "lost_records": (lambda it: _is_whole(it, 0), "a whole number from 0 on"),
    "epochs": (lambda it: _is_whole(it, 1), "a whole number from 1 on"),
    "keep_bytes": (lambda it: it is None or _is_whole(it, 0), "a whole number from 0 on"),
    "bytes_per_s": (lambda it: _is_whole(it, 1), "a whole number from 1 on"),
    "share": (lambda it: _is_number(it) and 0 < it <= 1, "a number above 0, and 1 at most"),
    "cut": _YES_OR_NO,
    "after": _YES_OR_NO,
}
"""What an argument has to be, and how that is said, by its name."""
