"""What differs between virtual and real time: the clock, the timers, and who drives them.

In virtual time a broker's process has one timer on the engine's manual clock, driven by the engine,
and everything runs on one thread. In real time (`real_time`) each purgatory has a timer and a
reaper of its own on the machine's clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from purgatory import DelayedOperationPurgatory
from purgatory.kafka import TopicPartition
from purgatory.simulation.change_recorder import ChangeRecorder
from purgatory.simulation.engine import Engine, VirtualEngine
from purgatory.simulation.operation_recorder import OperationRecorder
from purgatory.simulation.told_purgatory import ToldPurgatory, ToldTimer
from timer import Clock, InlineExecutor, SystemTimer

PURGATORIES = ("Produce", "Fetch", "DeleteRecords")
"""The names of the purgatories that each broker has, in the order of the tables."""

GROUP_PURGATORIES = ("Rebalance", "Sync", "Heartbeat")
"""Those that it has besides where there are consumer groups."""

TRANSACTION_PURGATORIES = ("TransactionMarker", "TransactionTimeout")
"""Those that it has besides where there are transactions."""


class Process:
    """A broker's running process: its clock and purgatories.

    Args:
        clock: the process's time.
        timer: the timer of all its purgatories; None when each has its own.
        purgatories: Produce, Fetch and DeleteRecords, and those of groups and of transactions, if
            there are any.
    """

    def __init__(
        self,
        clock: Clock,
        timer: SystemTimer | None,
        purgatories: Sequence[DelayedOperationPurgatory],
    ) -> None:
        self.clock = clock
        self.timer = timer
        self.purgatories = tuple(purgatories)
        self.produce, self.fetch, self.delete_records = self.purgatories[: len(PURGATORIES)]
        self.resumed_ns = 0

    def purgatory(self, name: str) -> DelayedOperationPurgatory:
        """The purgatory of this name."""
        return next(one for one in self.purgatories if one.name == name)


class Runtime(ABC):
    """Makes and ends processes, and says whose thread is whose.

    Args:
        engine: runs the events.
        recorder: is told of each settled operation.
    """

    threaded = False
    """Whether other threads than the engine's complete operations."""

    def __init__(self, engine: Engine, recorder: OperationRecorder) -> None:
        self.engine = engine
        self.recorder = recorder
        self.timer_tick_ms = 1
        self.timer_wheel_size = 20
        self.topic_partitions: Sequence[TopicPartition] = ()
        self.has_groups = False
        self.has_transactions = False
        self.changes: ChangeRecorder | None = None
        """Takes what the trace tells of the cluster's state."""
        self.on_start: Callable[[int, Process], None] | None = None
        self.on_end: Callable[[Process], None] | None = None

    def start_process(self, broker_id: int) -> Process:
        """Start a broker's process."""
        process = self._make_process(broker_id)
        if self.on_start is not None:
            self.on_start(broker_id, process)
        return process

    def end_process(self, process: Process) -> None:
        """End a process; its purgatories are gone, with nothing settled."""
        if self.on_end is not None:
            self.on_end(process)
        self._end_process(process)

    @abstractmethod
    def suspend_process(self, process: Process) -> None:
        """Let nothing expire in a process any more."""

    @abstractmethod
    def resume_process(self, process: Process) -> None:
        """Go on, beginning with what should have expired meanwhile."""

    @abstractmethod
    def handed_over(self, function: Callable[..., object], *args: Any) -> None:
        """Have the engine's thread call `function(*args)` soon; callable from any thread."""

    @abstractmethod
    def _make_process(self, broker_id: int) -> Process: ...

    @abstractmethod
    def _end_process(self, process: Process) -> None: ...


class VirtualRuntime(Runtime):
    """Processes in virtual time.

    Args:
        recorder: is told of each settled operation.
    """

    engine: VirtualEngine

    def __init__(self, recorder: OperationRecorder) -> None:
        super().__init__(VirtualEngine(), recorder)
        self._count = 0

    def handed_over(self, function: Callable[..., object], *args: Any) -> None:
        self.engine.after(0, function, *args)

    def suspend_process(self, process: Process) -> None:
        assert process.timer is not None
        self.engine.detach(process.timer)
        if isinstance(process.timer, ToldTimer):
            process.timer.stood_still = True

    def resume_process(self, process: Process) -> None:
        assert process.timer is not None
        process.resumed_ns = self.engine.now_ns()
        self.engine.attach(process.timer)
        process.timer.advance_clock(0)

    def _make_process(self, broker_id: int) -> Process:
        self._count += 1
        clock = self.engine.clock
        # The name puts the timers of one millisecond in order: by broker, then by age.
        name = f"broker-{broker_id:05}-{self._count:09}"
        of_timer = name, self.timer_tick_ms, self.timer_wheel_size, clock, InlineExecutor()
        waiting = [(purgatory, "", self.recorder.observe) for purgatory in PURGATORIES]
        waiting += [
            (purgatory, kind, partial(self.recorder.coordinated_wait, broker_id, purgatory, kind))
            for purgatory, kind in self._coordinating()
        ]
        changes = self.changes
        timer = SystemTimer(*of_timer)
        if changes is not None:
            timer = told = ToldTimer(changes, broker_id, *of_timer)
            purgatories: list[DelayedOperationPurgatory] = [
                ToldPurgatory(changes, kind or "coordinator", purgatory, told, broker_id, settled)
                for purgatory, kind, settled in waiting
            ]
        else:
            purgatories = [
                DelayedOperationPurgatory(
                    purgatory,
                    timer=timer,
                    broker_id=broker_id,
                    reaper_enabled=False,
                    on_settled=settled,
                )
                for purgatory, _, settled in waiting
            ]
        self.engine.attach(timer)
        return Process(clock, timer, purgatories)

    def _coordinating(self) -> Iterator[tuple[str, str]]:
        """The purgatories of coordinators, and who waits in each."""
        if self.has_groups:
            yield from ((name, "member") for name in GROUP_PURGATORIES)
        if self.has_transactions:
            yield from ((name, "transaction") for name in TRANSACTION_PURGATORIES)

    def _end_process(self, process: Process) -> None:
        assert process.timer is not None
        self.engine.detach(process.timer)
        for purgatory in process.purgatories:
            purgatory.close(pending="leave")
        process.timer.close()
