"""Which hot parts run: the native ones where they were built, else those in pure Python.

``PURGATORY_PURE=1`` in the environment forces pure Python. Both do the same.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module

NATIVE = False
"""Whether the native parts are in use."""

if os.environ.get("PURGATORY_PURE", "") in ("", "0"):
    # They are missing, were built for another Python, or refuse to be in a second interpreter.
    with suppress(ImportError):
        import_module("timer.native.core")
        NATIVE = True
