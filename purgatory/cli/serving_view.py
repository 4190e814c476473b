"""Serving the view of a trace from a command, until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from purgatory.view.replay_server import ReplayServer

_TERMINATED = 128 + signal.SIGTERM


def serve_view(command: str, folder: Path, host: str, port: int, opens: bool) -> int:
    """Open a trace, serve its view, and say where it is, until Ctrl-C or SIGTERM.

    Args:
        command: its name, for errors.
        folder: of the trace.
        host, port: where; port 0 takes a free one.
        opens: whether to open the browser.

    Returns:
        The exit status: 0 after Ctrl-C, 2 where there is no trace or no such place to listen.
    """
    from purgatory.view.errors import ViewError
    from purgatory.view.replay_server import ReplayServer
    from purgatory.view.run import TracedRun

    try:
        server = ReplayServer(TracedRun(folder), host, port)
        return asyncio.run(_serve(server, folder, opens))
    except ViewError as error:
        print(f"purgatory {command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # it was being opened
        return 0


async def _serve(server: ReplayServer, folder: Path, opens: bool) -> int:
    came: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(number: int) -> None:
        if not came.done():
            came.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    await server.start()
    try:
        print(f"{folder}: {server.url}  (Ctrl-C ends it)", flush=True)
        if opens:
            await asyncio.to_thread(webbrowser.open, server.url)
        return _TERMINATED if await came == signal.SIGTERM else 0
    finally:
        await server.stop()
