"""The path of a setting in a scenario, such as `producers[orders].timeout_ms`.

A path has the keys of the scenario file, joined by dots. After `producers`, `consumers` and
`faults`, brackets say which one: its number from 0, the group's name, or `*` for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from purgatory.settings.problems import did_you_mean

Place = tuple[str | int, ...]
"""Where a value stands in a document: keys of tables and numbers in arrays."""

_STEP = re.compile(r"([A-Za-z0-9_-]+)(?:\[([^\[\]]+)\])?")
_DOT = re.compile(r"\.(?![^\[]*\])")  # a dot in brackets belongs to a group's name
_NOT_SWEPT = {
    "seed": "seeds come from `repetitions` and `first_seed`",
    "name": "a run's name says nothing about what happens in it",
    "description": "a description changes nothing",
}


class PathError(ValueError):
    """A path that leads nowhere; the text says what would be right."""


def places(path: str, document: Mapping[str, Any]) -> tuple[Place, ...]:
    """Where the setting stands in a scenario's document; several places with `[*]`.

    Args:
        path: as a person writes it.
        document: a scenario with all its keys, the default ones too.

    Raises:
        PathError: there is no such setting in this scenario.
    """
    if path in _NOT_SWEPT:
        raise PathError(f"can't be swept: {_NOT_SWEPT[path]}")
    steps = [_STEP.fullmatch(part) for part in _DOT.split(path)]
    found: list[tuple[Place, Any]] = [((), document)]
    for step in steps:
        if step is None:
            raise PathError(
                "is no path of a setting: give keys joined by dots, as followers.lag_ms or "
                "producers[0].timeout_ms"
            )
        found = [
            further
            for place, value in found
            for further in _followed(place, value, step[1], step[2])
        ]
    return tuple(place for place, _ in found)


def value_at(document: Any, place: Place) -> Any:
    """The value at a place that exists."""
    for part in place:
        document = document[part]
    return document


def replaced(document: Any, place: Place, value: Any) -> Any:
    """A document with another value at a place; shares everything else. O(keys on the way)."""
    if not place:
        return value
    copy = list(document) if isinstance(document, list) else dict(document)
    copy[place[0]] = replaced(document[place[0]], place[1:], value)  # type: ignore[index]
    return copy


def column_name(path: str) -> str:
    """The name of the setting's column: the path with `_` for everything but letters and digits."""
    return re.sub(r"[^A-Za-z0-9]+", "_", path.replace("[*]", "")).strip("_")


def _followed(place: Place, value: Any, key: str, which: str | None) -> Iterator[tuple[Place, Any]]:
    if not isinstance(value, Mapping):
        shown = _text(place)
        if value is None:
            raise PathError(f"the base scenario has no {shown}; give it there first")
        if isinstance(value, Sequence) and not isinstance(value, str):
            raise PathError(f"say which of {shown}: {shown}[0], {_names(value)}or {shown}[*]")
        raise PathError(f"{shown} is no table: there is nothing in it to sweep")
    if key not in value:
        hint = did_you_mean(key, value)
        raise PathError(f"there is no key {key!r}; {hint}the keys here are {', '.join(value)}")
    if which is None:
        yield (*place, key), value[key]
        return
    items = value[key]
    if not isinstance(items, list):
        raise PathError(f"{_text((*place, key))} is not an array: leave out [{which}]")
    for number in _chosen(items, which, key):
        yield (*place, key, number), items[number]


def _chosen(items: Sequence[Any], which: str, key: str) -> Sequence[int]:
    if not items:
        raise PathError(f"the base scenario has no {key}; give them there first")
    if which == "*":
        return range(len(items))
    if which.isdecimal():
        if int(which) < len(items):
            return [int(which)]
        raise PathError(f"there is no {key}[{which}]; they are numbered 0 to {len(items) - 1}")
    named = [number for number, item in enumerate(items) if _group(item) == which]
    if not named:
        raise PathError(
            f"there is no {key}[{which}]; there are {_names(items)}0 to {len(items) - 1}"
        )
    return named


def _group(item: Any) -> str | None:
    return item.get("group") if isinstance(item, Mapping) else None


def _names(items: Sequence[Any]) -> str:
    return "".join(f"[{name}], " for name in map(_group, items) if name is not None)


def _text(place: Place) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
