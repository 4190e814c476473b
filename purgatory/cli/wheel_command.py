"""``purgatory wheel``: see a layered timing wheel turn."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from purgatory.cli import shared_options as options
from purgatory.cli.duration import duration_parser
from purgatory.cli.whole_number import whole_number
from purgatory.settings.typed_duration import Duration

if TYPE_CHECKING:
    from rich.console import Console

    from purgatory.view.wheel_walk import Step, WheelWalk

REDRAW_MS = 50
"""How often the picture is drawn again while nothing is due."""


def wheel(
    tick: Annotated[Duration, options.duration_option("Width of the finest buckets.")] = Duration(
        "1s"
    ),
    size: Annotated[
        int,
        typer.Option(
            parser=whole_number(2, 1_000), metavar="N", help="Buckets per level, 2 to 1000."
        ),
    ] = 3,
    delays: Annotated[
        str, typer.Option(metavar="DURATION,...", help="One delay per task.")
    ] = "1s,2s,3s,4s,5s,6s,7s",
    start: Annotated[
        Duration, options.duration_option("The clock's time at the start.", least="0s")
    ] = Duration("0s"),
    as_json: options.AsJson = False,
    view: options.View = False,
    view_host: options.ViewHost = "127.0.0.1",
    view_port: options.ViewPort = 0,
    no_open: options.NoOpen = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go by the machine's clock, in real time.")
    ] = False,
    idle: Annotated[
        Duration, options.duration_option("--follow ends once nothing was due for so long.")
    ] = Duration("2s"),
    pause: Annotated[
        Duration | None,
        options.duration_option(
            "Pause between two steps: by default 600ms on a terminal and 0s elsewhere.",
            least="0s",
            most="1min",
        ),
    ] = None,
) -> None:
    """See a layered timing wheel turn, step by step.

    Each delay is a task. After the insertions, time jumps from one occupied bucket to the next:
    what a bucket held runs, or falls to a finer level. A bucket is due when it begins, so a task
    runs up to one tick early: the tick is the timer's precision.

    The bucket that holds the present is drawn as > 0 <. All times count from the start. On a
    terminal the picture is drawn in place: space stops it, the arrows step forward and back, q
    leaves. With --view a page teaches the same, until Ctrl-C.
    """
    delays_ms = _parsed_delays(delays)
    if follow and (as_json or start.us):
        other = "--json" if as_json else "--start"
        raise typer.BadParameter(
            "--follow goes by the machine's clock, and draws", param_hint=f"'{other}'"
        )
    if view:
        _view(view_host, view_port, not no_open)
    elif as_json:
        _print_json(tick.whole_ms, size, start.whole_ms, delays_ms)
    elif follow:
        _follow(tick.whole_ms, size, delays_ms, idle.whole_ms)
    else:
        pause_ms = None if pause is None else pause.whole_ms
        _draw(tick.whole_ms, size, start.whole_ms, delays_ms, pause_ms)


def _view(host: str, port: int, opens: bool) -> None:
    import asyncio

    from purgatory.view.errors import ViewError

    try:
        asyncio.run(_show_page(host, port, opens))
    except ViewError as error:
        print(f"purgatory wheel: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


async def _show_page(host: str, port: int, opens: bool) -> None:
    import asyncio
    import signal
    import webbrowser

    from purgatory.view.wheel_server import wheel_page

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with wheel_page(host, port) as address:
        print(f"view: {address}", flush=True)
        if opens:
            await loop.run_in_executor(None, webbrowser.open, address)
        await stop.wait()


def _parsed_delays(text: str) -> list[int]:
    parse = duration_parser(least="0s")
    try:
        return [parse(word).whole_ms for word in text.split(",")]
    except typer.BadParameter as error:
        message = f"{error.message} (right would be 1s,2s,3500ms)"
        raise typer.BadParameter(message, param_hint="'--delays'") from None


def _print_json(tick_ms: int, size: int, start_ms: int, delays: Sequence[int]) -> None:
    from purgatory.view.wheel_walk import walk

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

    from purgatory.view.wheel_walk import walk

    console = Console(highlight=False, emoji=False)
    if pause_ms is None:
        pause_ms = 600 if console.is_terminal else 0
    if console.is_terminal:
        from purgatory.cli.wheel_player import play

        walked = list(walk(tick_ms, size, start_ms, delays))
        steps = len(walked)
        play(console, walked, start_ms, pause_ms)
    else:
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

    from purgatory.view.wheel_walk import WheelWalk
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
