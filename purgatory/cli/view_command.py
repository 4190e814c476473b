"""``purgatory view``: a trace or a story in the browser, at any moment of its run.

The commands that serve a page until Ctrl-C do so by `serve_page`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import webbrowser
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import click

from purgatory.cli import options
from purgatory.cli.options import PATH

if TYPE_CHECKING:
    from pathlib import Path

    from purgatory.settings.typed_duration import Duration

_TERMINATED = 128 + signal.SIGTERM


@click.command()
@click.argument(
    "trace",
    type=PATH,
    help="The folder of a trace, or the file of a world's story.",
)
@options.duration_option(
    "--at",
    "The moment to open at, since the start of the run, as in 6.5s. By default the worst "
    "one: a produce that times out while most requests wait, or the longest wait.",
    least="0us",
    step="1us",
)
@options.page_options
def view(trace: Path, at: Duration | None, view_host: str, view_port: int, no_open: bool) -> int:
    """Show a trace in the browser: wheels, partitions and requests, at any moment of the run.

    Of a story, the file that a failed test in a virtual world writes, it shows the steps of
    hosts and brokers, and the messages between them. The page is served until Ctrl-C.
    """
    import aiohttp  # noqa: F401  # a missing extra is an error before a trace is read
    import pyarrow  # noqa: F401

    try:
        is_story = trace.is_file()
    except OSError:
        is_story = False  # reading it as a trace raises the error
    if is_story:
        if at is not None:
            print(
                "purgatory view: --at is for traces; a story opens where it failed", file=sys.stderr
            )
            return 2
        return _serve_story(trace, view_host, view_port, not no_open)
    return serve_trace(
        "view", trace, view_host, view_port, not no_open, at_us=None if at is None else at.us
    )


def _serve_story(path: Path, host: str, port: int, open_browser: bool) -> int:
    from purgatory.view.errors import ViewError
    from purgatory.view.page_server import read_story, story_page

    try:
        story = read_story(path)
    except ViewError as error:
        print(f"purgatory view: {error}", file=sys.stderr)
        return 2
    return serve_page("view", story_page(story, host, port), str(path), open_browser)


def serve_trace(
    command: str,
    folder: Path,
    host: str,
    port: int,
    open_browser: bool,
    at_us: int | None = None,
) -> int:
    """Open a trace and serve its view until Ctrl-C or SIGTERM; returns the exit status.

    Args:
        at_us: the moment that the page opens at; None: the worst one.
    """
    from purgatory.view.errors import ViewError
    from purgatory.view.replay_server import ReplayServer
    from purgatory.view.time_travel import TracedRun

    @asynccontextmanager
    async def serving(run: TracedRun) -> AsyncIterator[str]:
        server = ReplayServer(run, host, port)
        await server.start()
        try:
            # The address may have a token already, as the first of its parameters.
            separator = "&" if "#" in server.url else "#"
            yield server.url + ("" if at_us is None else f"{separator}at={at_us}")
        finally:
            await server.stop()

    try:
        return serve_page(command, serving(TracedRun(folder)), str(folder), open_browser)
    except ViewError as error:
        print(f"purgatory {command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # Ctrl-C while the trace was opened
        return 0


def serve_page(
    command: str, serving: AbstractAsyncContextManager[str], title: str, open_browser: bool
) -> int:
    """Serve a page until Ctrl-C or SIGTERM.

    Args:
        command: its name, for errors.
        serving: serves the page while it is entered; its value is the address.
        title: printed before the address.
        open_browser: whether to open the browser.

    Returns:
        The exit status: 0 after Ctrl-C, 143 after SIGTERM, 2 where nothing can listen.
    """
    from purgatory.view.errors import ViewError

    async def serve() -> int:
        loop = asyncio.get_running_loop()
        stopped: asyncio.Future[int] = loop.create_future()

        def stop(number: int) -> None:
            if not stopped.done():
                stopped.set_result(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        async with serving as address:
            print(f"{title}: {address}  (Ctrl-C ends it)", flush=True)
            if open_browser:
                await asyncio.to_thread(webbrowser.open, address)
            return _TERMINATED if await stopped == signal.SIGTERM else 0

    try:
        return asyncio.run(serve())
    except ViewError as error:
        print(f"purgatory {command}: {error}", file=sys.stderr)
        return 2
