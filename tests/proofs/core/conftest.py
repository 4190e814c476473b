"""The fixtures of `tests/unit/core`."""

from tests.unit.core.conftest import logs, no_thread_remains

__all__ = ["logs", "no_thread_remains"]
