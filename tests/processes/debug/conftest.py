"""The fixtures of `tests/unit/debug`."""

from tests.unit.debug.conftest import looked

__all__ = ["looked"]
