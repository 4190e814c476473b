"""The layered timing wheel: millions of timeouts at O(1) each.

    timer = SystemTimer("example")
    task = timer.call_later(250, print, "a quarter of a second later")
    timer.advance_clock(300)

The parts: tasks and their entries (``timer_task``), a bucket (``timer_task_list``), the wheel
(``timing_wheel``), the order of the buckets in use (``delay_queue``), and the timer that drives
them by a clock (``system_timer``).
"""

from typing import TYPE_CHECKING, Any

from timer.backend import NATIVE
from timer.clock import Clock, ManualClock, SystemClock
from timer.errors import TimerClosedError
from timer.executor import InlineExecutor, TaskExecutor
from timer.former_names import FORMER, check_former
from timer.system_timer import SystemTimer, Timer
from timer.timer_task import TimerTask
from timer.timing_wheel import TimingWheel

__all__ = [
    "NATIVE",
    "Clock",
    "InlineExecutor",
    "ManualClock",
    "SystemClock",
    "SystemTimer",
    "TaskExecutor",
    "Timer",
    "TimerClosedError",
    "TimerTask",
    "TimingWheel",
]

if not TYPE_CHECKING:  # or it would let any name pass

    def __getattr__(name: str) -> Any:
        check_former(FORMER, __name__, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
