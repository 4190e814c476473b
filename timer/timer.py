"""The face of a timer: what the purgatory needs of one."""

from __future__ import annotations

from abc import ABC, abstractmethod

from timer.clock import Clock
from timer.timer_task import TimerTask


class Timer(ABC):
    """Runs tasks after a delay, driven by whoever calls ``advance_clock``."""

    clock: Clock

    @abstractmethod
    def add(self, task: TimerTask) -> None:
        """Run ``task`` after its ``delay_ms``; a task that waits already starts anew."""

    @abstractmethod
    def advance_clock(self, timeout_ms: int) -> bool:
        """Run what is due, after waiting at most ``timeout_ms`` for it; True if there was any."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many tasks are pending."""

    @abstractmethod
    def close(self) -> int:
        """Take no more tasks, drop the pending ones, and return how many they were."""
