"""An operation that records its callbacks, and a purgatory whose time is moved by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, MutableMapping
from contextlib import AbstractContextManager
from typing import Any

import structlog

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.core.locks import LockLike
from purgatory.core.purgatory import CompletionObserver
from timer import InlineExecutor, ManualClock, SystemTimer

LONG_MS = 3_600_000

Logs = list[MutableMapping[str, Any]]
"""The events that the fixture ``logs`` collects."""


def core_logs() -> AbstractContextManager[Logs]:
    """Collect log events, without those of clusters that other tests left running."""

    def not_of_a_cluster(
        _: Any, __: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        if "partition" in event:
            raise structlog.DropEvent
        return event

    return structlog.testing.capture_logs(processors=[not_of_a_cluster])


class Probe(DelayedOperation):
    """Completes once ``ready``; notes its callbacks in ``calls``; raises where it is told to.

    Args:
        delay_ms: the longest wait.
        lock: the user's lock.
        ready: whether the condition holds.
        hooks: additional functions to call in callbacks, by their names; it may raise.
    """

    def __init__(
        self,
        delay_ms: int | None = LONG_MS,
        lock: LockLike | None = None,
        ready: bool = False,
        hooks: dict[str, Callable[[], object]] | None = None,
    ) -> None:
        super().__init__(delay_ms, lock)
        self.ready = ready
        self.hooks = hooks or {}
        self.calls: list[str] = []

    def try_complete(self) -> bool:
        self._note("try_complete")
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self._note("on_complete")

    def on_expiration(self) -> None:
        self._note("on_expiration")

    def on_failure(self, error: BaseException) -> None:
        assert error is self.error
        self._note("on_failure")

    def _note(self, stage: str) -> None:
        self.calls.append(stage)
        hook = self.hooks.get(stage)
        if hook is not None:
            hook()

    @property
    def finished(self) -> list[str]:
        """The callbacks but for the checks."""
        return [call for call in self.calls if call != "try_complete"]


class Setting:
    """A purgatory without threads, on a clock that stands still until it is moved."""

    def __init__(
        self,
        timer_enabled: bool = True,
        on_completed: CompletionObserver | None = None,
        wheel_size: int = 20,
        clock: ManualClock | None = None,
        max_pending: int | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.timer = SystemTimer(
            "manual", wheel_size=wheel_size, clock=self.clock, executor=InlineExecutor()
        )
        self.purgatory = DelayedOperationPurgatory(
            "Manual",
            timer=self.timer,
            reaper_enabled=False,
            timer_enabled=timer_enabled,
            on_completed=on_completed,
            max_pending=max_pending,
        )

    def submit(self, operation: Probe, *keys: Hashable) -> Probe:
        """Submit ``operation`` and return it."""
        self.purgatory.try_complete_else_watch(operation, keys)
        return operation

    def pass_time(self, delta_ms: int) -> None:
        """Move the clock, as a driver of the timer would."""
        pass_time(self.clock, self.timer, delta_ms)

    def assert_empty(self) -> None:
        """Assert that nothing waits anywhere, and all invariants."""
        purgatory = self.purgatory
        purgatory._check()
        self.timer._check()
        assert (purgatory.watched, purgatory.watched_keys, purgatory.num_delayed) == (0, 0, 0)
        assert self.timer.size == 0


def pass_time(clock: ManualClock, timer: SystemTimer, delta_ms: int) -> None:
    """Move the clock from one bucket that is due to the next, and let the timer run each."""
    end_ms = clock.now_ms() + delta_ms
    while (next_ms := timer.next_expiration_ms()) is not None and next_ms <= end_ms:
        clock.advance_to(max(next_ms, clock.now_ms()))
        timer.advance_clock(0)
    clock.advance_to(end_ms)


def run_threads(*threads: threading.Thread) -> None:
    """Start all, and wait for their ends."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "the thread waits for ever"
