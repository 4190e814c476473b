"""Frames a second of the view's page while 10,000 operations are parked and 1,000 a second change.

    python -m tests.benchmarks.view_frames

The server makes its state up, so that what is measured is the page: reading the feed, the model and
the canvas, in a headless Chromium that draws without a graphics card.
"""

from __future__ import annotations

from statistics import median

from tests.benchmarks.measurement import Figure, Size, run_alone
from tests.browser.view.chromium import chromium, opened
from tests.browser.view.made_view import MadeView, served

LATER_MS = 3_000_000


def lasting(parked: int) -> MadeView:
    """Marks of which none expires while it is looked at."""
    view = MadeView(parked)
    for one in view.operations.values():
        one[6] = None if one[6] is None else one[6] + LATER_MS
    return view


def measure(size: Size = Size.USUAL) -> list[Figure]:
    parked = size.pick(500, 10_000)
    with chromium() as browser, served(lasting(parked)) as live:
        live.rate_per_s = 1_000  # half of the changes are completions, half come in their place
        with opened(browser, live.address) as page:
            page.wait_for_timeout(2_000)
            frames = []
            for _ in range(size.pick(2, 20)):
                page.wait_for_timeout(1_000)
                frames.append(page.evaluate("purgatoryView.model.framesPerSecond"))
            drawn = page.evaluate("Object.values(purgatoryView.drawn).reduce((a, b) => a + b)")
    frames_name = "frames in a second, 1,000 changes a second"
    return [
        Figure("marks that are drawn", drawn, "marks"),
        Figure(f"{frames_name}: half of the seconds", median(frames), "frames", 30, "higher"),
        Figure(f"{frames_name}: the worst second", min(frames), "frames"),
    ]


if __name__ == "__main__":
    run_alone(measure)
