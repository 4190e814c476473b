"""``purgatory wheel``: see a layered timing wheel turn."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli.whole_number import whole_number

if TYPE_CHECKING:
    from rich.console import Console

    from purgatory.cli.wheel_walk import Step, WheelWalk

REDRAW_MS = 50
"""How often the picture is drawn again while nothing is due."""

MOST_MS = 2**53
"""No time is beyond it: every JSON reader takes such an integer exactly."""


def wheel(
    tick_ms: Annotated[
        int,
        typer.Option(
            parser=whole_number(1, MOST_MS),
            metavar="MS",
            help="Width of the finest buckets, in milliseconds.",
        ),
    ] = 1000,
    size: Annotated[
        int,
        typer.Option(
            parser=whole_number(2, 1_000), metavar="N", help="Buckets per level, 2 to 1000."
        ),
    ] = 3,
    delays_ms: Annotated[
        str, typer.Option(metavar="MS,MS,...", help="One delay per task, in milliseconds.")
    ] = "1000,2000,3000,4000,5000,6000,7000",
    start_ms: Annotated[
        int,
        typer.Option(
            parser=whole_number(0, MOST_MS), metavar="MS", help="The clock's time at the start."
        ),
    ] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all steps and states as one JSON document.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go by the machine's clock, in real time.")
    ] = False,
    idle_ms: Annotated[
        int,
        typer.Option(
            parser=whole_number(1, MOST_MS),
            metavar="MS",
            help="--follow ends once nothing was due for so long.",
        ),
    ] = 2000,
    pause_ms: Annotated[
        int | None,
        typer.Option(
            parser=whole_number(0, 60_000),
            metavar="MS",
            help="Pause between two steps: by default 600 on a terminal and 0 elsewhere.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """See a layered timing wheel turn, step by step.

    Each delay is a task. After the insertions, time jumps from one occupied bucket to the next:
    what a bucket held runs, or falls to a finer level. A bucket is due when it begins, so a task
    runs up to one tick early: the tick is the timer's precision.

    The bucket that holds the present is drawn as > 0 <. All times count from the start.
    """
    delays = _parsed_delays(delays_ms)
    if follow and (as_json or start_ms):
        other = "--json" if as_json else "--start-ms"
        raise typer.BadParameter(
            "--follow goes by the machine's clock, and draws", param_hint=f"'{other}'"
        )
    if as_json:
        _print_json(tick_ms, size, start_ms, delays)
    elif follow:
        _follow(tick_ms, size, delays, idle_ms)
    else:
        _draw(tick_ms, size, start_ms, delays, pause_ms)


def _parsed_delays(text: str) -> list[int]:
    parse = whole_number(0, MOST_MS)
    try:
        return [parse(word) for word in text.split(",")]
    except typer.BadParameter as error:
        message = f"{error.message} (right would be 1000,2000,3500)"
        raise typer.BadParameter(message, param_hint="'--delays-ms'") from None


def _print_json(tick_ms: int, size: int, start_ms: int, delays: Sequence[int]) -> None:
    from purgatory.cli.wheel_walk import walk

    document = {
        "tick_ms": tick_ms,
        "wheel_size": size,
        "start_ms": start_ms,
        "steps": list(walk(tick_ms, size, start_ms, delays)),
    }
    print(json.dumps(document, indent=1))


def _draw(
    tick_ms: int, size: int, start_ms: int, delays: Sequence[int], pause_ms: int | None
) -> None:
    from rich.console import Console

    from purgatory.cli.wheel_walk import walk

    console = Console(highlight=False, emoji=False)
    if pause_ms is None:
        pause_ms = 600 if console.is_terminal else 0
    steps = 0
    for step in walk(tick_ms, size, start_ms, delays):
        if steps:
            time.sleep(pause_ms / 1000)
        _print_step(console, step, start_ms)
        steps += 1
    console.print(f"{len(delays)} tasks ran in {steps - 1 - len(delays)} advances of the clock")


def _print_step(console: Console, step: Step, start_ms: int) -> None:
    from purgatory.cli.wheel_drawing import headline, picture

    console.print(headline(step, start_ms))
    console.print(picture(step, start_ms))
    console.print()


def _follow(tick_ms: int, size: int, delays: Sequence[int], idle_ms: int) -> None:
    from rich.console import Console

    from purgatory.cli.wheel_walk import WheelWalk
    from timer import SystemClock

    console = Console(highlight=False, emoji=False)
    wheel_walk = WheelWalk(tick_ms, size, SystemClock())
    try:
        draw = _draw_live if console.is_terminal else _draw_each
        draw(console, wheel_walk, _real_steps(wheel_walk, delays, idle_ms))
        waiting = wheel_walk.timer.size
    finally:
        wheel_walk.timer.close()
    rest = f"; {waiting} of {len(delays)} tasks still waited" if waiting else ""
    console.print(f"nothing was due for {idle_ms} ms{rest}")


def _real_steps(
    wheel_walk: WheelWalk, delays: Sequence[int], idle_ms: int
) -> Iterator[Step | None]:
    """Yield the steps as they happen, and None every ``REDRAW_MS`` while there is none."""
    clock = wheel_walk.clock
    yield wheel_walk.start()
    for number, delay_ms in enumerate(delays, start=1):
        yield wheel_walk.insert(number, delay_ms)
    idle_until_ms = clock.now_ms() + idle_ms
    while (left_ms := idle_until_ms - clock.now_ms()) > 0:
        step = wheel_walk.advance(min(left_ms, REDRAW_MS))
        if step is not None:
            idle_until_ms = clock.now_ms() + idle_ms
        yield step


def _draw_each(console: Console, wheel_walk: WheelWalk, steps: Iterable[Step | None]) -> None:
    for step in steps:
        if step is not None:
            _print_step(console, step, wheel_walk.start_ms)


def _draw_live(console: Console, wheel_walk: WheelWalk, steps: Iterable[Step | None]) -> None:
    """Redraw one picture in place; what happened scrolls up above it."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from purgatory.cli.wheel_drawing import headline, moment, picture

    start_ms = wheel_walk.start_ms
    last: Step | None = None
    with Live(console=console, auto_refresh=False) as live:
        for step in steps:
            if step is not None:
                last = step
                console.print(headline(step, start_ms))
            assert last is not None
            now = Text(f"now {moment(wheel_walk.clock.now_ms(), start_ms)}")
            live.update(Group(picture(last, start_ms), now), refresh=True)
