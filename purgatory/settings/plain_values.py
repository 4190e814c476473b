"""Objects of the values of a document, by type hints, where all values are plainly right.

pydantic, which says what is wrong with values, takes longer to import and to prepare than a whole
cluster to start. So it is asked only about documents with something that isn't plain: an error, or
a type that isn't known here.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class NotPlainError(Exception):
    """The value has an error, or needs pydantic."""


def plain_value(hint: type[T], value: Any) -> T:
    """Return what pydantic makes of a JSON value of this type in strict mode.

    Args:
        hint: a dataclass, of plain types and of dataclasses.
        value: a value as `tomllib` has it, whose paths may be of `Path`.

    Raises:
        NotPlainError: pydantic has to say what it is.
    """
    try:
        result: T = _value(hint, value)
    except NotPlainError:
        raise
    except Exception as error:  # of a class' own checks
        raise NotPlainError from error
    return result


def _value(hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return _member(typing.get_args(hint), value)
    if hint is None or hint is type(None):
        return _checked(value, value is None)
    if hint is float:
        return float(_checked(value, type(value) in (int, float) and math.isfinite(value)))
    if hint in (bool, int):
        return _checked(value, type(value) is hint)
    if hint is str:
        return _text(value)
    if hint is Path:
        return Path(_text(str(value) if isinstance(value, Path) else value))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(_text(value))
    if isinstance(hint, type) and is_dataclass(hint):
        return _object(hint, value)
    return _collection(typing.get_origin(hint), typing.get_args(hint), value)


def _member(hints: Sequence[Any], value: Any) -> Any:
    """Return the value as the first member of a union that it is."""
    for hint in hints:
        try:
            return _value(hint, value)
        except NotPlainError:
            continue
    raise NotPlainError


def _object(kind: Any, value: Any) -> Any:
    known = {part.name for part in fields(kind) if part.init}
    _checked(value, isinstance(value, dict) and value.keys() <= known)
    hints = typing.get_type_hints(kind)
    return kind(**{key: _value(hints[key], element) for key, element in value.items()})


def _collection(origin: Any, arguments: Sequence[Any], value: Any) -> Any:
    if origin is typing.Literal:
        return _checked(value, isinstance(value, str) and value in arguments)
    if origin is Sequence:
        _checked(value, isinstance(value, list))
        return [_value(arguments[0], element) for element in value]
    if origin is Mapping:
        _checked(value, isinstance(value, dict))
        key_hint, element_hint = arguments
        return {_value(key_hint, key): _value(element_hint, one) for key, one in value.items()}
    raise NotPlainError


def _text(value: Any) -> str:
    # Bytes of a command line that aren't UTF-8 are surrogates here.
    _checked(value, isinstance(value, str) and value.isprintable())
    return str(value)


def _checked(value: Any, plain: bool) -> Any:
    if not plain:
        raise NotPlainError
    return value
