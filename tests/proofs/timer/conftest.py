"""The fixtures of `tests/unit/timer`."""

from tests.unit.timer.conftest import clock, ran, timer

__all__ = ["clock", "ran", "timer"]
