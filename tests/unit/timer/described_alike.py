"""Public names and docstrings of a class are the same with native parts."""

from __future__ import annotations

import inspect


def public_names(one: type) -> set[str]:
    """The names that its users see."""
    return {name for name in dir(one) if not name.startswith("_")}


def assert_described_alike(public: type, pure: type) -> None:
    """Assert that the public names of ``pure`` have the same words, and arguments, in ``public``.

    Args:
        public: the class that users see, over its native parts.
        pure: the layer of it that is native there, in pure Python.
    """
    names = public_names(pure)
    assert names
    for name in names:
        native, reference = getattr(public, name), getattr(pure, name)
        if not (callable(reference) or isinstance(reference, property)):
            continue  # an attribute
        assert inspect.cleandoc(native.__doc__) == inspect.cleandoc(reference.__doc__), name
        if callable(reference):
            assert inspect.signature(native) == inspect.signature(reference), name
