"""A broker's purgatories and their timer, as they tell the trace what is parked in them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.core.purgatory import SettledObserver
from purgatory.simulation.change_recorder import ChangeRecorder
from purgatory.simulation.engine import NS_PER_MS
from timer import SystemTimer

_NO_KEYS: tuple[Hashable, ...] = ()


class ToldTimer(SystemTimer):
    """A broker's timer that tells when it advances at an unexpected time.

    Args:
        changes: is told.
        broker: whose it is.
        more: as `SystemTimer` takes it.
    """

    def __init__(self, changes: ChangeRecorder, broker: int, *more: Any, **named: Any) -> None:
        super().__init__(*more, **named)
        self._changes = changes
        self._broker = broker
        self._advances = False
        self.stood_still = False
        """Whether it was not driven since it last advanced."""

    def advance_clock(self, timeout_ms: int = 0) -> bool:
        now_ns, first_ms = self.clock.now_ns(), self.next_expiration_ms()
        is_foreseen = first_ms is not None and first_ms * NS_PER_MS == now_ns
        if self.stood_still or not is_foreseen or self._changes.looked_ns == now_ns:
            self.stood_still = False
            self._changes.clock(self._broker)
        self._advances = True
        try:
            return super().advance_clock(timeout_ms)
        finally:
            self._advances = False

    @property
    def clock_ms(self) -> int | None:
        """While it advances, how far it has come; else None."""
        return self._levels()[0][1] if self._advances else None


class ToldPurgatory(DelayedOperationPurgatory):
    """A purgatory that tells what is parked in it.

    Args:
        changes: is told.
        kind: who waits in it, unless it is somebody's request.
        name, timer, broker_id, on_settled: as `DelayedOperationPurgatory` takes them.
    """

    def __init__(
        self,
        changes: ChangeRecorder,
        kind: str,
        name: str,
        timer: ToldTimer,
        broker_id: int,
        on_settled: SettledObserver,
    ) -> None:
        self._changes = changes
        self._kind = kind
        self._told_timer = timer
        self._observe = on_settled
        super().__init__(name, timer, broker_id, reaper_enabled=False, on_settled=self._settled)

    def try_complete_else_watch(
        self,
        operation: DelayedOperation,
        keys: Iterable[Hashable] = _NO_KEYS,
        thresholds: Mapping[Any, int] | None = None,
    ) -> bool:
        completed = super().try_complete_else_watch(operation, keys, thresholds)
        if not operation.is_completed:
            clock_ms = self._told_timer.clock_ms
            self._changes.parked(self.broker_id, self.name, self._kind, operation, clock_ms)
        return completed

    def _settled(self, operation: DelayedOperation, outcome: str, wait_ns: int) -> None:
        self._observe(operation, outcome, wait_ns)
        self._changes.settled(self.broker_id, operation, outcome)
