"""Takes the picture of the view that docs/view.md shows: a simulation in which a follower stalls.

python -m tests.browser.view.picture docs/view.png
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from purgatory.simulation import Simulation, load_scenario
from purgatory.view.replay_server import ReplayServer
from purgatory.view.time_travel import TracedRun
from tests.browser.view.chromium import chromium, opened, until
from tests.browser.view.own_loop import own_loop
from tests.browser.view.shown_state import at

MOMENT_US = 6_500_000
WIDTH, HEIGHT = 1_280, 890


@asynccontextmanager
async def replaying(run: TracedRun) -> AsyncIterator[str]:
    """Serve a traced run; yields the address."""
    server = ReplayServer(run)
    await server.start()
    try:
        yield server.url
    finally:
        # The search for bookmarks, a thread in an engine, has to end before the process.
        while "still searching" in [
            bookmark["why_not"] for bookmark in server._bookmarks.entries()
        ]:
            await asyncio.sleep(0.05)
        await server.stop()


def take(picture: Path) -> None:
    """Simulate, open the page at a moment, and write what it shows."""
    with TemporaryDirectory() as folder:
        Simulation(load_scenario("slow-follower"), trace_folder=Path(folder) / "trace").run()
        run = TracedRun(Path(folder) / "trace")
        with (
            own_loop(lambda: replaying(run)) as address,
            chromium() as browser,
            opened(browser, f"{address}#at={MOMENT_US}", width=WIDTH, motion="reduce") as page,
        ):
            until(lambda: at(page) == MOMENT_US)
            page.wait_for_timeout(1_000)  # words follow within a quarter of a second
            page.screenshot(path=picture, clip={"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT})


if __name__ == "__main__":
    take(Path(sys.argv[1]))
