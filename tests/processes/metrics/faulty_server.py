"""A purgatory on which rare things are made to happen, one at a time."""

from __future__ import annotations

from typing import NoReturn

import pytest

from purgatory import DelayedOperationPurgatory, PurgatoryFullError
from tests.unit.core.probe import Probe
from timer import InlineExecutor, ManualClock, SystemTimer


class Named(Probe):
    """An operation whose text does not change with its outcome."""

    def __repr__(self) -> str:
        return "<the operation>"


class Server:
    """A purgatory that takes 2 operations, on a clock that is moved by hand, on this thread."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timer = SystemTimer("manual", clock=self.clock, executor=InlineExecutor())
        self.purgatory = DelayedOperationPurgatory(
            "Produce", timer=self.timer, reaper_enabled=False, max_pending=2
        )

    def submit(self, probe: Named) -> Named:
        self.purgatory.try_complete_else_watch(probe, ["key"])
        return probe

    def reject(self) -> Named:
        waiting = [self.submit(Named()) for _ in range(2)]
        rejected = Named()
        with pytest.raises(PurgatoryFullError):
            self.submit(rejected)
        for probe in waiting:
            probe.force_complete()
        return rejected

    def fail_in(self, stage: str) -> Named:
        def raises() -> NoReturn:
            raise ValueError("on purpose")

        probe = self.submit(Named(1_000, hooks={stage: raises}))
        self.purgatory.check_and_complete("key")
        if stage != "try_complete":
            self.pass_time(1_000)
        return probe

    def miss_a_wakeup(self) -> Named:
        probe = self.submit(Named(1_000))
        probe.ready = True
        self.pass_time(1_000)
        return probe

    def pass_time(self, delta_ms: int) -> None:
        self.clock.advance(delta_ms)
        self.timer.advance_clock(0)
