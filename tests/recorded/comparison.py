"""The differences between what a real Kafka was answered and what ours is, field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.recorded.recorder import Step

VARIES = "<varies>"
"""A field in which two recordings of one Kafka differ: nothing is compared with it."""

ABSENT = "(absent)"
_KEYS = (
    *("Name", "TopicName", "ResourceName", "ApiKey", "PartitionIndex", "PrincipalType"),
    "MemberId",
)
"""The fields that name the elements of a list, if each has its own. Kafka's groups list members in
the order of a hash table."""

_SHOWN_CHARACTERS = 100
_LONG_NAME = 80


class Difference(NamedTuple):
    """A field that differs.

    Args:
        step: the step's name.
        path: the field, as ``.Configs[retention.ms].Value``; the places in lists without names of
            their own are left out: ``.Results[].ErrorCode``.
        theirs: the value of a real Kafka, as text.
        ours: ours.
    """

    step: str
    path: str
    theirs: str
    ours: str


def compare(theirs: Sequence[Step], ours: Sequence[Step]) -> list[Difference]:
    """Return the differences between two runs of a program."""
    recorded, replayed = dict(theirs), dict(ours)
    return [
        difference
        for name in [*recorded, *(name for name in replayed if name not in recorded)]
        for difference in _fields(name, "", recorded.get(name, ABSENT), replayed.get(name, ABSENT))
    ]


def fields_of(answer: Any) -> int:
    """Return how many fields an answer has, to tell how much was compared."""
    if isinstance(answer, Mapping):
        return sum(map(fields_of, answer.values()))
    return sum(map(fields_of, answer)) if isinstance(answer, list) else 1


def without_noise(one: Any, other: Any) -> Any:
    """Return an answer with `VARIES` in place of what differs between two recordings of it."""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and list(one) == list(other):
        return {key: without_noise(part, other[key]) for key, part in one.items()}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [without_noise(*pair) for pair in zip(one, other, strict=True)]
    return one if _equal(one, other) else VARIES


def _fields(step: str, path: str, theirs: Any, ours: Any) -> Iterator[Difference]:
    if theirs == VARIES:
        return
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in [*theirs, *(key for key in ours if key not in theirs)]:
            parts = theirs.get(key, ABSENT), ours.get(key, ABSENT)
            yield from _fields(step, f"{path}.{key}", *parts)
    elif isinstance(theirs, list) and isinstance(ours, list):
        key = _key(theirs + ours)
        one, other = _by_key(theirs, key), _by_key(ours, key)
        for name in [*one, *(name for name in other if name not in one)]:
            place = f"{path}[{name if _is_name(key, name) else ''}]"
            yield from _fields(step, place, one.get(name, ABSENT), other.get(name, ABSENT))
    elif not _equal(theirs, ours):
        yield Difference(step, path, _text(theirs), _text(ours))


def _is_name(key: str | None, name: str) -> bool:
    """Whether an element's key tells it in a path; partitions' and runs' own names don't."""
    is_own = key in (None, "PartitionIndex", "MemberId") or "<run>" in name
    return not is_own and len(name) <= _LONG_NAME


def _key(elements: Sequence[Any]) -> str | None:
    for key in _KEYS:
        if all(isinstance(one, Mapping) and one.get(key) not in (None, VARIES) for one in elements):
            return key
    return None


def _by_key(elements: Sequence[Any], key: str | None) -> Mapping[str, Any]:
    named: dict[str, Any] = {}
    for place, element in enumerate(elements):
        name = str(element[key]) if key else str(place)
        while name in named:
            name += "'"
        named[name] = element
    return named


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _text(value: Any) -> str:
    if value and isinstance(value, Mapping | list):
        return "{...}" if isinstance(value, Mapping) else "[...]"
    shown = value if isinstance(value, str) else json.dumps(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + "..."
