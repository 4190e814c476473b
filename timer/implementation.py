"""Which hot parts run: the native ones where they were built, else those in pure Python.

``PURGATORY_PURE=1`` in the environment forces pure Python. Both do the same.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

NATIVE = os.environ.get("PURGATORY_PURE", "") in ("", "0") and all(
    find_spec(f"timer.native.{name}") is not None for name in ("core", "histogram", "task", "wheel")
)
"""Whether the native parts are in use."""
