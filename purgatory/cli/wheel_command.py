"""``purgatory wheel``: draws a layered timing wheel step by step, or serves the page that plays it.

All times are shown relative to the start of the walk. The frames are rich's, which falls back to
ASCII where the terminal's encoding has nothing better.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import click
from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from purgatory.cli import options
from purgatory.cli.options import duration_parser, whole_number
from purgatory.cli.view_command import serve_page
from purgatory.settings.typed_duration import Duration
from purgatory.view.wheel import PolledBucket, Step, walk
from timer.snapshot import BucketSnapshot, LevelSnapshot, TimerSnapshot

MAX_UNFOLDED_BUCKETS = 8
"""A wheel of more buckets than this is drawn with its idle ones folded together."""

MAX_SHOWN_TASKS = 12
"""The most tasks of a bucket that are named; the others are counted."""


@click.command()
@options.duration_option("--tick", "Width of the finest buckets.", default=Duration("1s"))
@options.option(
    "--size",
    type=whole_number(2, 1_000),
    default=3,
    metavar="N",
    help="Buckets per level, 2 to 1000.",
)
@options.option(
    "--delays",
    default="1s,2s,3s,4s,5s,6s,7s",
    metavar="DURATION,...",
    help="One delay per task.",
)
@options.duration_option(
    "--start", "The clock's time at the start.", default=Duration("0s"), least="0s"
)
@options.as_json
@options.view
@options.page_options
def wheel(
    tick: Duration,
    size: int,
    delays: str,
    start: Duration,
    as_json: bool,
    view: bool,
    view_host: str,
    view_port: int,
    no_open: bool,
) -> int:
    """Draw a layered timing wheel, step by step.

    Each delay is a task. After the insertions, time jumps from one occupied bucket to the next:
    the bucket's tasks run, or move to a finer level. A bucket is due when it begins, so a task
    runs up to one tick early: the tick is the timer's precision.

    The bucket that holds the present is drawn as > 0 <. All times count from the start. With
    --view a page plays the same steps, forward and back, until Ctrl-C.
    """
    delays_ms = _parsed_delays(delays)
    if view:
        from purgatory.view.page_server import wheel_page

        return serve_page("wheel", wheel_page(view_host, view_port), "view", not no_open)
    if as_json:
        _print_json(tick.whole_ms, size, start.whole_ms, delays_ms)
    else:
        _print_steps(tick.whole_ms, size, start.whole_ms, delays_ms)
    return 0


def _parsed_delays(text: str) -> list[int]:
    parse = duration_parser(least="0s")
    try:
        return [parse(word).whole_ms for word in text.split(",")]
    except click.BadParameter as error:
        message = f"{error.message} (right would be 1s,2s,3500ms)"
        raise click.BadParameter(message, param_hint="'--delays'") from None


def _print_json(tick_ms: int, size: int, start_ms: int, delays: Sequence[int]) -> None:
    document = {
        "tick_ms": tick_ms,
        "wheel_size": size,
        "start_ms": start_ms,
        "steps": list(walk(tick_ms, size, start_ms, delays)),
    }
    print(json.dumps(document, indent=1))


def _print_steps(tick_ms: int, size: int, start_ms: int, delays: Sequence[int]) -> None:
    console = Console(highlight=False, emoji=False)
    steps = 0
    for step in walk(tick_ms, size, start_ms, delays):
        console.print(headline(step, start_ms))
        console.print(render_step(step, start_ms))
        console.print()
        steps += 1
    console.print(f"{len(delays)} tasks ran in {steps - 1 - len(delays)} advances of the clock")


def duration(ms: int) -> str:
    """Return ``ms`` milliseconds for a reader: ``442 ms``, ``1.442 s``, ``-2.558 s``."""
    if 0 < abs(ms) < 1000:
        return f"{ms} ms"
    seconds, thousandths = divmod(abs(ms), 1000)
    fraction = f".{thousandths:03}".rstrip("0").rstrip(".")
    return f"{'-' if ms < 0 else ''}{seconds:,}{fraction} s"


def format_time(ms: int, start_ms: int) -> str:
    """Return the time ``ms`` as a distance from ``start_ms``: ``+1.442 s``."""
    return f"{'+' if ms >= start_ms else ''}{duration(ms - start_ms)}"


def headline(step: Step, start_ms: int) -> Text:
    """Return a one-line summary of ``step``."""
    if "task" in step:
        text = Text(f"insert task {step['task']}", style="bold")
        text.append(f", due in {duration(step['delay_ms'])}", style="not bold")
    elif "clock_ms" in step:
        text = Text(f"advance to {format_time(step['clock_ms'], start_ms)}", style="bold")
        text.append(f": polled {_buckets(step['polled'])}", style="not bold")
    else:
        text = Text(step["event"], style="bold")
    if step.get("ran"):
        text.append(f"; ran {_tasks(step['ran'])}", style="not bold bright_green")
    if step.get("reinserted"):
        text.append(f"; inserted again {_tasks(step['reinserted'])}", style="not bold yellow")
    return text


def render_step(step: Step, start_ms: int) -> Group:
    """Return all levels after ``step`` and the delay queue."""
    changed_tasks = {step["task"]} if "task" in step else set(step.get("reinserted", ()))
    state = step["state"]
    levels = [part for level in state["levels"] for part in _level(level, start_ms, changed_tasks)]
    return Group(*levels, _delay_queue(state, start_ms))


def _level(
    level: LevelSnapshot, start_ms: int, changed_tasks: set[int]
) -> Iterator[RenderableType]:
    begin, end = (format_time(ms, start_ms) for ms in level["covers_ms"])
    yield Text(
        f"level {level['level']}   tick {duration(level['tick_ms'])}   covers [{begin}, {end})",
        style="cyan",
    )
    yield Columns([_cell(cell, start_ms, changed_tasks) for cell in _cells(level)], padding=(0, 1))


class _Cell(NamedTuple):
    first: int
    last: int
    is_now: bool
    bucket: BucketSnapshot


def _cells(level: LevelSnapshot) -> Iterator[_Cell]:
    """Yield the buckets to draw: the idle ones of a large wheel as one."""
    buckets = level["buckets"]
    now = level["covers_ms"][0] // level["tick_ms"] % len(buckets)
    is_folded = len(buckets) > MAX_UNFOLDED_BUCKETS
    idle_begin: int | None = None
    for index, bucket in enumerate(buckets):
        if is_folded and bucket["expiration_ms"] < 0 and index != now:
            idle_begin = index if idle_begin is None else idle_begin
            continue
        if idle_begin is not None:
            yield _Cell(idle_begin, index - 1, False, buckets[idle_begin])
            idle_begin = None
        yield _Cell(index, index, index == now, bucket)
    if idle_begin is not None:
        yield _Cell(idle_begin, len(buckets) - 1, False, buckets[idle_begin])


def _cell(cell: _Cell, start_ms: int, changed_tasks: set[int]) -> Panel:
    name = f"{cell.first}" if cell.first == cell.last else f"{cell.first}..{cell.last}"
    expiration_ms = cell.bucket["expiration_ms"]
    idle = expiration_ms < 0
    content = Text("idle" if idle else format_time(expiration_ms, start_ms))
    content.append("\n")
    tasks = cell.bucket["tasks"]
    for task in tasks[:MAX_SHOWN_TASKS]:
        content.append(f"{task} ", style="bold yellow" if task in changed_tasks else "bold")
    if len(tasks) > MAX_SHOWN_TASKS:
        content.append(f"and {len(tasks) - MAX_SHOWN_TASKS:,} more")
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
    visible = [
        f"{format_time(item['expiration_ms'], start_ms)} "
        f"(level {item['level']} bucket {item['bucket']})"
        for item in queue[:MAX_SHOWN_TASKS]
    ]
    if len(queue) > MAX_SHOWN_TASKS:
        visible.append(f"and {len(queue) - MAX_SHOWN_TASKS:,} more")
    return Text(f"delay queue: {', '.join(visible) or 'empty'}", style="magenta")


def _buckets(polled: Sequence[PolledBucket]) -> str:
    return (
        _join_names(f"level {item['level']} bucket {item['bucket']}" for item in polled) or "none"
    )


def _tasks(numbers: Sequence[int]) -> str:
    return f"task{'s' if len(numbers) > 1 else ''} {_join_names(map(str, numbers))}"


def _join_names(words: Iterable[str]) -> str:
    every = list(words)
    if len(every) > MAX_SHOWN_TASKS:
        every[MAX_SHOWN_TASKS:] = [f"{len(every) - MAX_SHOWN_TASKS:,} more"]
    return ", ".join(every)
