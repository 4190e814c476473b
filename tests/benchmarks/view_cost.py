"""The cost of the view's page to the cluster that it shows, and whether the page keeps up.

    python -m tests.benchmarks.view_cost

Three brokers on one event loop; 10,000 operations are parked, and 1,000 more a second come, wait
for 50 ms and are completed. The viewer is a process of its own that reads the feed and drops it. A
turn of the feed is measured in the processor's time of the loop's thread, and so is what a second
costs with and without a viewer. Frames are those that Chromium draws of the page, where there is
one: beside what else the machine does, so an idle one is needed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median

from purgatory import DelayedOperation
from purgatory.cluster import Cluster, ClusterConfig, TopicSpec
from purgatory.cluster.control.control import Control
from tests.benchmarks.measurement import Figure, Size, run_alone, say

PER_S = 1_000
_BEAT_S = 0.01
_ROUNDS = 3
_READER = """
import sys, urllib.request
stream = urllib.request.urlopen(sys.argv[1] + "/view/live")
while stream.read1(1 << 20):
    pass
"""
_PAGE = """
import shutil, sys
from playwright.sync_api import sync_playwright
count = "() => new Promise((done) => { let n = 0; const begin = performance.now();" \\
    " const look = (now) => now - begin > 5000 ? done(n / 5) :" \\
    " (n += 1, requestAnimationFrame(look)); requestAnimationFrame(look); })"
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(
        executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
        args=["--no-sandbox"],
    )
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(sys.argv[1] + "/")
    page.wait_for_selector("canvas")
    page.wait_for_timeout(3000)
    print(page.evaluate(count))
    browser.close()
"""


class Waiting(DelayedOperation):
    def try_complete(self) -> bool:
        return False


def measure(size: Size = Size.USUAL) -> list[Figure]:
    return asyncio.run(_measure(size))


async def _measure(size: Size) -> list[Figure]:
    parked, seconds = size.pick(100, 10_000), size.pick(0.3, 5.0)
    async with Cluster(ClusterConfig(brokers=3, topics=[TopicSpec("orders", 3, 3)])) as cluster:
        control = Control(cluster)
        await control.start()
        try:
            purgatory = cluster.brokers[1].purgatories[0].core
            for number in range(parked):
                purgatory.try_complete_else_watch(Waiting(600_000 + number * 17), ["parked"])
            churn = asyncio.create_task(_churn(cluster))
            turns_s = _timed_turns(control)
            alone, viewed = [], []
            for _ in range(size.pick(1, _ROUNDS)):
                alone.append(await _share(seconds))
                async with _viewer(control, _READER):
                    viewed.append(await _share(seconds))
            longest_s, usual_s = max(turns_s), median(turns_s)
            frames = None if size is Size.SMALL else await _frames(control)
            churn.cancel()
            rates = await _rates(cluster, control, seconds, size.pick(1, _ROUNDS))
        finally:
            await control.stop()
    figures = [
        Figure(f"a turn of the feed, {parked:,} parked, median", usual_s * 1e3, "ms", 10),
        Figure("the longest of them", longest_s * 1e3, "ms", 50),
        Figure("share of a core for a viewer", (median(viewed) - median(alone)) * 100, "%", 15),
        Figure("requests with a viewer, of those without", rates[1] / rates[0] * 100, "%"),
    ]
    if frames is not None:
        figures.append(Figure("frames a second in Chromium", frames, "/s", 30, "higher"))
    say(f"requests a second: {rates[0]:,.0f} without a viewer, {rates[1]:,.0f} with one")
    return figures


def _timed_turns(control: Control) -> list[float]:
    """Have the feed's turns measured, and return where that is noted."""
    feed, spent_s = control.live.feed, []
    take_turn = feed._send_changes

    def timed() -> None:
        begin_s = time.thread_time()
        take_turn()
        spent_s.append(time.thread_time() - begin_s)

    feed._send_changes = timed  # type: ignore[method-assign]
    return spent_s


async def _churn(cluster: Cluster) -> None:
    """Submit and complete, evenly over time."""
    cores = [broker.purgatories[0].core for broker in cluster.brokers.values()]
    loop = asyncio.get_running_loop()
    begin_s, done = loop.time(), 0
    while True:
        await asyncio.sleep(_BEAT_S)
        while done < (loop.time() - begin_s) * PER_S:
            operation, core = Waiting(30_000), cores[done % len(cores)]
            core.try_complete_else_watch(operation, [f"key {done % 20}"])
            loop.call_later(0.05, operation.force_complete)
            done += 1


async def _share(seconds: float) -> float:
    """The share of a core that the loop's thread uses."""
    begin_s = time.thread_time()
    await asyncio.sleep(seconds)
    return (time.thread_time() - begin_s) / seconds


@asynccontextmanager
async def _viewer(control: Control, program: str) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, control.url)
    try:
        while not control.live.feed.viewers:
            await asyncio.sleep(0.01)
        yield
    finally:
        process.kill()
        await process.wait()
        while control.live.feed.viewers:
            await asyncio.sleep(0.01)


async def _frames(control: Control) -> float | None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", _PAGE, control.url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, failed = await process.communicate()
    if process.returncode:
        say(f"no frames: {failed.decode()[-300:]}")
        return None
    return float(out)


async def _rates(
    cluster: Cluster, control: Control, seconds: float, rounds: int
) -> tuple[float, float]:
    """Produces a second, without and with a viewer, in turns."""
    without, viewed = [], []
    for _ in range(rounds):
        without.append(await _produce_rate(cluster, seconds))
        async with _viewer(control, _READER):
            viewed.append(await _produce_rate(cluster, seconds))
    return median(without), median(viewed)


async def _produce_rate(cluster: Cluster, seconds: float) -> float:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.benchmarks.cluster_clients", "produce"),
        *(cluster.bootstrap_servers, str(seconds)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    return float(json.loads(out)["per_s"])


if __name__ == "__main__":
    run_alone(measure)
