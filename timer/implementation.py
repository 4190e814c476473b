"""Which hot parts run: the native ones where they were built, else those in pure Python.

``PURGATORY_PURE=1`` in the environment forces pure Python. Both do the same.
"""

from __future__ import annotations

import os
from importlib import import_module


def _native_parts_load() -> bool:
    """Whether they are there, were built for this Python, and agree to a second interpreter."""
    try:
        import_module("timer.native.core")
    except ImportError:
        return False
    return True


NATIVE = os.environ.get("PURGATORY_PURE", "") in ("", "0") and _native_parts_load()
"""Whether the native parts are in use."""
