"""Steps of a wheel's walk, drawn for a terminal.

All times are shown relative to the start of the walk. Own text is plain ASCII; the frames are
rich's, which falls back to ASCII where the terminal's encoding has nothing better.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich import box
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from purgatory.view.wheel_walk import PolledBucket, Step
from timer import TimerSnapshot
from timer.system_timer import BucketSnapshot, LevelSnapshot

ALL_BUCKETS_UP_TO = 8
"""A wheel of more buckets than this is drawn with its idle ones folded together."""

TASKS_SHOWN = 12
"""The most tasks of a bucket that are named; the others are counted."""


def duration(ms: int) -> str:
    """Return ``ms`` milliseconds for a reader: ``442 ms``, ``1.442 s``, ``-2.558 s``."""
    if 0 < abs(ms) < 1000:
        return f"{ms} ms"
    whole, thousandths = divmod(abs(ms), 1000)
    fraction = f".{thousandths:03}".rstrip("0").rstrip(".")
    return f"{'-' if ms < 0 else ''}{whole:,}{fraction} s"


def moment(ms: int, start_ms: int) -> str:
    """Return the time ``ms`` as a distance from ``start_ms``: ``+1.442 s``."""
    return f"{'+' if ms >= start_ms else ''}{duration(ms - start_ms)}"


def headline(step: Step, start_ms: int) -> Text:
    """Return in one line what happened in ``step``."""
    if "task" in step:
        text = Text(f"insert task {step['task']}", style="bold")
        text.append(f", due in {duration(step['delay_ms'])}", style="not bold")
    elif "clock_ms" in step:
        text = Text(f"advance to {moment(step['clock_ms'], start_ms)}", style="bold")
        text.append(f": polled {_buckets(step['polled'])}", style="not bold")
    else:
        text = Text(step["event"], style="bold")
    if step.get("ran"):
        text.append(f"; ran {_tasks(step['ran'])}", style="not bold bright_green")
    if step.get("reinserted"):
        text.append(f"; inserted again {_tasks(step['reinserted'])}", style="not bold yellow")
    return text


def picture(step: Step, start_ms: int) -> Group:
    """Return all levels after ``step`` and the delay queue."""
    moved = {step["task"]} if "task" in step else set(step.get("reinserted", ()))
    state = step["state"]
    levels = [part for level in state["levels"] for part in _level(level, start_ms, moved)]
    return Group(*levels, _delay_queue(state, start_ms))


def _level(level: LevelSnapshot, start_ms: int, moved: set[int]) -> Iterator[RenderableType]:
    begin, end = (moment(ms, start_ms) for ms in level["covers_ms"])
    yield Text(
        f"level {level['level']}   tick {duration(level['tick_ms'])}   covers [{begin}, {end})",
        style="cyan",
    )
    yield Columns([_cell(cell, start_ms, moved) for cell in _cells(level)], padding=(0, 1))


class _Cell(NamedTuple):
    first: int
    last: int
    is_now: bool
    bucket: BucketSnapshot


def _cells(level: LevelSnapshot) -> Iterator[_Cell]:
    """Yield the buckets to draw: those of a large wheel that are idle as one."""
    buckets = level["buckets"]
    now = level["covers_ms"][0] // level["tick_ms"] % len(buckets)
    fold = len(buckets) > ALL_BUCKETS_UP_TO
    idle_from: int | None = None
    for index, bucket in enumerate(buckets):
        if fold and bucket["expiration_ms"] < 0 and index != now:
            idle_from = index if idle_from is None else idle_from
            continue
        if idle_from is not None:
            yield _Cell(idle_from, index - 1, False, buckets[idle_from])
            idle_from = None
        yield _Cell(index, index, index == now, bucket)
    if idle_from is not None:
        yield _Cell(idle_from, len(buckets) - 1, False, buckets[idle_from])


def _cell(cell: _Cell, start_ms: int, moved: set[int]) -> Panel:
    name = f"{cell.first}" if cell.first == cell.last else f"{cell.first}..{cell.last}"
    expiration_ms = cell.bucket["expiration_ms"]
    idle = expiration_ms < 0
    content = Text("idle" if idle else moment(expiration_ms, start_ms))
    content.append("\n")
    tasks = cell.bucket["tasks"]
    for task in tasks[:TASKS_SHOWN]:
        content.append(f"{task} ", style="bold yellow" if task in moved else "bold")
    if len(tasks) > TASKS_SHOWN:
        content.append(f"and {len(tasks) - TASKS_SHOWN:,} more")
    style = "dim" if idle else ""
    return Panel(
        content,
        title=f"> {name} <" if cell.is_now else name,
        box=box.HEAVY if cell.is_now else box.ROUNDED,
        style=style,
        border_style="bright_cyan not dim" if cell.is_now else style,
        width=max(14, len(name) + 8),
    )


def _delay_queue(state: TimerSnapshot, start_ms: int) -> Text:
    queue = state["delay_queue"]
    shown = [
        f"{moment(item['expiration_ms'], start_ms)} (level {item['level']} bucket {item['bucket']})"
        for item in queue[:TASKS_SHOWN]
    ]
    if len(queue) > TASKS_SHOWN:
        shown.append(f"and {len(queue) - TASKS_SHOWN:,} more")
    return Text(f"delay queue: {', '.join(shown) or 'empty'}", style="magenta")


def _buckets(polled: Sequence[PolledBucket]) -> str:
    return _listed(f"level {item['level']} bucket {item['bucket']}" for item in polled) or "none"


def _tasks(numbers: Sequence[int]) -> str:
    return f"task{'s' if len(numbers) > 1 else ''} {_listed(map(str, numbers))}"


def _listed(words: Iterable[str]) -> str:
    every = list(words)
    if len(every) > TASKS_SHOWN:
        every[TASKS_SHOWN:] = [f"{len(every) - TASKS_SHOWN:,} more"]
    return ", ".join(every)
