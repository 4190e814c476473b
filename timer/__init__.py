"""The layered timing wheel: millions of timeouts at O(1) each.

    timer = SystemTimer("example")
    task = timer.call_later(250, print, "a quarter of a second later")
    timer.advance_clock(300)

The parts: tasks and their entries (``timer_task``), a bucket (``timer_task_list``), the wheel
(``timing_wheel``), the order of the buckets in use (``delay_queue``), and what drives them by a
clock (``system_timer``).
"""

from timer.backend import NATIVE
from timer.clock import Clock, ManualClock, SystemClock
from timer.delay_queue import DelayQueue
from timer.errors import TimerClosedError
from timer.executor import InlineExecutor, SingleThreadExecutor, TaskExecutor
from timer.histogram import Histogram, HistogramSnapshot
from timer.system_timer import SystemTimer, Timer, TimerSnapshot
from timer.timer_task import TimerTask, TimerTaskEntry
from timer.timer_task_list import TimerTaskList
from timer.timing_wheel import TimingWheel
from timer.wake import Wake

__all__ = [
    "NATIVE",
    "Clock",
    "DelayQueue",
    "Histogram",
    "HistogramSnapshot",
    "InlineExecutor",
    "ManualClock",
    "SingleThreadExecutor",
    "SystemClock",
    "SystemTimer",
    "TaskExecutor",
    "Timer",
    "TimerClosedError",
    "TimerSnapshot",
    "TimerTask",
    "TimerTaskEntry",
    "TimerTaskList",
    "TimingWheel",
    "Wake",
]


def __dir__() -> list[str]:
    return list(__all__)
