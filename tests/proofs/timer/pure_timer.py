"""The timer in pure Python beside the one that is in use: an oracle for the native parts."""

from __future__ import annotations

from types import ModuleType

from tests.proofs.core.fresh_core import load_fresh


def pure_timer() -> ModuleType:
    """Return a fresh ``timer`` whose parts are all in pure Python."""
    [module] = load_fresh(["timer"], {})
    return module
