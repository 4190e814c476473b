"""The cost of being scraped to a purgatory: watch-then-complete with metrics on, and without.

    python -m tests.benchmarks.metrics_cost
    python -m tests.benchmarks.metrics_cost --full    # counts instructions too; needs valgrind

Each operation is made, watched on 3 of 100 keys, and completed by an event. 1,000 other operations
wait meanwhile, so that there is something to report. With metrics on, the purgatory is registered,
and scraped once in each turn, on the same thread, so that all of the scrape is counted: that is
several times a second, where Prometheus usually asks every 15 s.

A turn on and a turn off stand beside each other, and the median of their ratios counts: a machine
that slows down for seconds slows down both. Off against off shows how far that can be trusted.

Counting instructions is exact where a clock isn't. The difference of two numbers of operations
leaves out what starts and ends the program.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from statistics import median

from prometheus_client import CollectorRegistry, generate_latest

from purgatory import DelayedOperationPurgatory, metrics
from tests.benchmarks.measurement import Figure, Size, run_alone, say, seconds
from tests.benchmarks.purgatory_throughput import Waiting, by_event

ROUNDS = 31
WAITING = 1_000
SCRAPE_INTERVAL_S = 15
COUNTED = {"off": (500, 4_500), "on": (500, 4_500), "scrape": (5, 45)}
"""The cases counted in instructions, and the two numbers whose difference counts."""


def wait_on(purgatory: DelayedOperationPurgatory) -> None:
    """Have operations wait that no event completes."""
    for number in range(WAITING):
        purgatory.try_complete_else_watch(Waiting(), [f"other-{number}"])


def ratio(first: Callable[[], object], second: Callable[[], object], rounds: int) -> float:
    """Return the median of the first's time over the second's, each pair in turns."""
    ratios = []
    for number in range(rounds):
        turns = [first, second] if number % 2 == 0 else [second, first]
        spent_s = {turn: seconds(turn) for turn in turns}
        ratios.append(spent_s[first] / spent_s[second])
    return median(ratios)


def measure(size: Size = Size.USUAL) -> list[Figure]:
    operations = size.pick(100, 20_000)
    rounds = size.pick(3, ROUNDS)
    registry = CollectorRegistry()
    with DelayedOperationPurgatory("Produce") as purgatory:
        wait_on(purgatory)

        def off() -> None:
            by_event(purgatory, operations)

        def off_again() -> None:
            by_event(purgatory, operations)

        def on() -> None:
            metrics.register(purgatory, registry)
            by_event(purgatory, operations)
            generate_latest(registry)
            metrics.unregister(purgatory, registry)

        off()
        turn_s = seconds(off)
        figures = [
            Figure(
                f"watch, complete; scraped every {operations:,} operations, against none",
                ratio(on, off, rounds),
                "x",
                1.05,
            ),
            Figure("the same without metrics, against itself", ratio(off_again, off, rounds), "x"),
        ]
        metrics.register(purgatory, registry)
        scrape_s = min(seconds(lambda: generate_latest(registry)) for _ in range(20))
        purgatory.close("leave")
    say(f"a turn takes {turn_s:.2f} s, of which one scrape is {scrape_s / turn_s:.2%}")
    figures += [
        Figure("one scrape of one purgatory", scrape_s * 1e3, "ms"),
        Figure(
            f"a scrape every {SCRAPE_INTERVAL_S} s, of one core",
            scrape_s / SCRAPE_INTERVAL_S * 100,
            "%",
        ),
    ]
    return figures + (instructions() if size is Size.FULL else [])


# Counting instructions.


def instructions() -> list[Figure]:
    """Return how many instructions an operation takes without metrics and with, and a scrape."""
    if shutil.which("valgrind") is None:
        say("valgrind is not installed: no instructions are counted")
        return []
    each = {}
    for what, (few, many) in COUNTED.items():
        each[what] = (instructions_of(what, many) - instructions_of(what, few)) / (many - few)
    return [
        Figure("instructions of watch, complete: not registered", each["off"], ""),
        Figure("instructions of watch, complete: registered", each["on"], ""),
        Figure("the latter against the former", each["on"] / each["off"], "x", 1.05),
        Figure("instructions of one scrape", each["scrape"], ""),
    ]


def instructions_of(what: str, number: int) -> int:
    """Return how many instructions ``run_counted`` takes, in a process of its own."""
    program = f"from tests.benchmarks.metrics_cost import run_counted as r; r({what!r}, {number})"
    ran = subprocess.run(
        [
            *("valgrind", "--tool=cachegrind", "--cache-sim=no"),
            f"--cachegrind-out-file={os.devnull}",
            *(sys.executable, "-c", program),
        ],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"I *refs: *([\d,]+)", ran.stderr)
    assert found is not None, ran.stderr
    return int(found[1].replace(",", ""))


def run_counted(what: str, number: int) -> None:
    """Do so many operations, or scrapes, on this thread alone."""
    gc.disable()  # it would come round at another operation in each run
    registry = CollectorRegistry()
    with DelayedOperationPurgatory("Produce", reaper_enabled=False) as purgatory:
        wait_on(purgatory)
        if what != "off":
            metrics.register(purgatory, registry)
        generate_latest(registry)
        if what == "scrape":
            for _ in range(number):
                generate_latest(registry)
        else:
            by_event(purgatory, number)
        purgatory.close("leave")


if __name__ == "__main__":
    run_alone(measure)
