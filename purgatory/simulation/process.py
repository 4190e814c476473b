"""A broker's running process: one timer on the engine's clock, and the purgatories on it.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from purgatory import DelayedOperationPurgatory
from purgatory.simulation.engine import Engine
from purgatory.simulation.scenario import ClusterSection
from purgatory.simulation.trace import (
    ChangeRecorder,
    ObservedPurgatory,
    ObservedTimer,
    OperationRecorder,
)
from timer import InlineExecutor, SystemTimer

PURGATORIES = ("Produce", "Fetch", "DeleteRecords")
"""The purgatories of each broker. No simulated client deletes records: the last one stays empty."""


class Process:
    """A running process, which the engine drives.

    Args:
        broker_id: the broker's.
        number: counts the broker's processes, from 1.
        cluster: has the settings of the timer.
        recorder: takes the outcomes of operations.
        changes: writes the trace's table `changes`; None: there is none.
    """

    def __init__(
        self,
        broker_id: int,
        number: int,
        engine: Engine,
        cluster: ClusterSection,
        recorder: OperationRecorder,
        changes: ChangeRecorder | None,
    ) -> None:
        self.clock = engine.clock
        self.resumed_ns = 0
        self._engine = engine
        # The name puts the timers of one millisecond in order: by broker, then by age.
        timer_arguments = (
            f"broker-{broker_id:05}-{number:09}",
            cluster.timer_tick_ms,
            cluster.timer_wheel_size,
            engine.clock,
            InlineExecutor(),
        )
        self.timer: SystemTimer
        if changes is None:
            self.timer = SystemTimer(*timer_arguments)
            self.purgatories = [
                DelayedOperationPurgatory(
                    purgatory,
                    timer=self.timer,
                    broker_id=broker_id,
                    reaper_enabled=False,
                    on_completed=recorder.observe,
                )
                for purgatory in PURGATORIES
            ]
        else:
            self.timer = observed = ObservedTimer(changes, broker_id, *timer_arguments)
            self.purgatories = [
                ObservedPurgatory(changes, purgatory, observed, broker_id, recorder.observe)
                for purgatory in PURGATORIES
            ]
        self.produce, self.fetch, self.delete_records = self.purgatories
        engine.attach(self.timer)

    def suspend(self) -> None:
        """Suspend expirations."""
        self._engine.unregister(self.timer)
        if isinstance(self.timer, ObservedTimer):
            self.timer.was_suspended = True

    def resume(self) -> None:
        """Resume, beginning with overdue expirations."""
        self.resumed_ns = self._engine.now_ns()
        self._engine.attach(self.timer)
        self.timer.advance_clock(0)

    def end(self) -> None:
        """End: the purgatories close without completing their operations."""
        self._engine.unregister(self.timer)
        for purgatory in self.purgatories:
            purgatory.close(policy="leave")
        self.timer.close()
