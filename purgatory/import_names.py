"""The import names ``purgatory`` and ``timer``: is what they bring this project's?

The package index has other projects of both names. Installed beside this one they lie in the same
folders, or come before it, and what fails then says nothing of that.
"""

from __future__ import annotations

import sys

import timer


def check_timer() -> None:
    """Raise ImportError if ``timer`` is somebody else's."""
    if not hasattr(timer, "SystemTimer"):
        raise ImportError(_advice("timer"))


def check_purgatory() -> None:
    """Raise ImportError if ``purgatory``, or ``timer``, is somebody else's."""
    check_timer()
    if "DelayedOperationPurgatory" not in getattr(sys.modules["purgatory"], "__all__", ()):
        raise ImportError(_advice("purgatory"))


def _advice(name: str) -> str:
    return (
        f"the package {name!r} in {sys.modules[name].__file__} is not that of kafka-purgatory: "
        f"another project of this name is installed over it or beside it. One environment can't "
        f"have both: pip uninstall {name}, then install kafka-purgatory again with "
        "pip install --force-reinstall --no-deps"
    )


check_timer()
