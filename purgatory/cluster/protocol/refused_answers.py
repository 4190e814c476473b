"""Answers that refuse: to all of a request, and to one thing that it asks about.

What was asked comes back by name and number, beside the code; all else is what Kafka has beside an
error (`answer_entities.blank`).

Ground rules: no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode as WireError

from purgatory.cluster.protocol.answer_entities import blank
from purgatory.cluster.protocol.answer_shape import ONE, Level, answer_shape
from purgatory.cluster.protocol.wire import Request


def refused_answer(request: Request, code: int, message: str | None = None) -> Any:
    """Return an answer that refuses all of a request, as an entity of `kio`.

    The code stands at the top where the answer has one there, else at each thing that is asked
    about. O(the request's elements).
    """
    shape = answer_shape(request.api_key, request.api_version)
    if shape.error is not None:
        member_id = getattr(request.body, "member_id", None)
        return blank(shape.of, {**_error(shape.error, code, message), "member_id": member_id})
    values = _refused_within(request.body, shape.levels, code) if code else {}
    return blank(shape.of, values)


def refused_part(request: Request, array: str, part: Any, code: int) -> Any:
    """Return the element of an answer that refuses one thing that a request asks about.

    Args:
        request: what was asked.
        array: one of the request's, whose elements its answer answers one by one.
        part: an element of it: a structure, a name or a number.
        code: of the refusal.
    """
    levels = answer_shape(request.api_key, request.api_version).levels
    return _refused(part, levels[0].asked.index(array), levels, code)


def answering_array(request: Request) -> str:
    """Return the array of an answer that answers, one by one, what its request asks about."""
    return answer_shape(request.api_key, request.api_version).levels[0].answered


def names_in(element: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Return what names an element of a request, by `answer_shape`'s names for its fields."""
    return {key: element if name == ONE else getattr(element, name) for key, name in names.items()}


def answer_element(
    level: Level, named: Mapping[str, Any], code: int = 0, message: str | None = None
) -> Any:
    """Return an element of an answer about something, with an error if there is one."""
    values = {field: named[key] for key, field in level.names.items() if key in named}
    if code:
        assert level.error is not None, "the place was chosen for its error"
        values.update(_error(level.error, code, message))
    return blank(level.of, values)


def _refused(part: Any, array: int, levels: Sequence[Level], code: int) -> Any:
    level, *deeper = levels
    named = names_in(part, level.asked_names[array])
    if level.error is not None:
        return answer_element(level, named, code)
    values = {field: named[key] for key, field in level.names.items() if key in named}
    return blank(level.of, {**values, **_refused_within(part, deeper, code)})


def _refused_within(asked: Any, levels: Sequence[Level], code: int) -> dict[str, Any]:
    refused = (
        _refused(part, array, levels, code)
        for array, name in enumerate(levels[0].asked)
        for part in getattr(asked, name) or ()
    )
    return {levels[0].answered: tuple(refused)}


def _error(field: str, code: int, message: str | None) -> dict[str, Any]:
    return {field: WireError(code), "error_message": message}
