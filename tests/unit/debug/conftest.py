"""A purgatory whose time is moved by hand, for the debug pages to look at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from purgatory import DelayedOperationPurgatory
from timer import InlineExecutor, ManualClock, SystemTimer


class Looked:
    """The purgatory, its timer and its clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timer = SystemTimer("looked at", clock=self.clock, executor=InlineExecutor())
        self.purgatory = DelayedOperationPurgatory("Fetch", self.timer, reaper_enabled=False)

    def pass_time(self, delta_ms: int) -> None:
        self.clock.advance(delta_ms)
        self.timer.advance_clock(0)


@pytest.fixture
def looked() -> Iterator[Looked]:
    made = Looked()
    yield made
    made.purgatory.close("fail")
