"""The backend of the timer's hot parts: native, if built, else pure Python.

``PURGATORY_PURE=1`` in the environment forces pure Python. Both do the same.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import FunctionType, WrapperDescriptorType


def _native_parts_load() -> bool:
    """Whether they are there, were built for this Python, and agree to a second interpreter."""
    try:
        import_module("timer.native.timer")
    except ImportError:
        return False
    return True


NATIVE = os.environ.get("PURGATORY_PURE", "") in ("", "0") and _native_parts_load()
"""Whether the native parts are in use."""


def describe_as(native: type, pure: type) -> None:
    """Give the public methods of a native class what those in pure Python say of themselves."""
    for name in set(vars(native)).intersection(dir(pure)):
        described, method = vars(native)[name], getattr(pure, name)
        if not isinstance(method, FunctionType) or isinstance(described, WrapperDescriptorType):
            continue
        if not name.startswith("_") or name == "__init__":
            described.__doc__ = method.__doc__
            described.__annotations__ = method.__annotations__
