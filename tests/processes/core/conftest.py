"""The fixtures of `tests/unit/core`."""

from tests.unit.core.conftest import logs

__all__ = ["logs"]
