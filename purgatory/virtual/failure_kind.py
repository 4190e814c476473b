"""Of which kind a failure is: what is made smaller has to stay the same failure."""

from __future__ import annotations

from pathlib import Path
from traceback import walk_tb

import pytest

_OURS = Path(__file__).parents[1]


def kind_of(error: BaseException | None) -> str:
    """Return the kind of a failure; None: nothing was raised where something should be.

    It is the type of what was raised. Where that is an assertion, or `pytest.fail`, it is also the
    place: the last line on the way to it that is not this package's, so that two checks of a test
    differ. A group is of the kinds of all that is in it.
    """
    if error is None:
        return "no error"
    if isinstance(error, BaseExceptionGroup):
        kinds = sorted({kind_of(one) for one in error.exceptions})
        return f"{_name(error)} of {'; '.join(kinds)}"
    if isinstance(error, AssertionError | pytest.fail.Exception):
        return f"{_name(error)} at {_place(error)}"
    return _name(error)


def _name(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _place(error: BaseException) -> str:
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    others = [place for place in places if _OURS not in Path(place[0]).parents]
    path, line = (others or places or [("?", 0)])[-1]
    return f"{path}:{line}"
