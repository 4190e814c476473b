"""Where a command's results have taken their place: what is said if it is stopped after that.

Ground rules: nothing here takes long to import; one command at a time runs in a process.
"""

from __future__ import annotations

_places: list[str] = []


def say_written(place: object) -> None:
    """Note that results are at a place, whole."""
    _places.append(str(place))


def forget_written() -> None:
    """Begin anew: nothing is written yet."""
    _places.clear()


def where_written() -> str | None:
    """The place of the results, or None."""
    return _places[-1] if _places else None
