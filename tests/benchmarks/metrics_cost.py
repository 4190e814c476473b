"""What it costs a purgatory to be scraped: watch-then-complete with metrics on, and without.

    python -m tests.benchmarks.metrics_cost

Each operation is made, watched on 3 of 100 keys, and completed by an event. With metrics on, the
purgatory is registered and a thread scrapes it at the start and then once a second, as Prometheus
would do at its fastest. 1,000 other operations wait meanwhile, so that there is something to
report.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, generate_latest

from purgatory import DelayedOperationPurgatory, metrics
from tests.benchmarks.measurement import Figure, Size, in_turns, run_alone, say, seconds
from tests.benchmarks.purgatory_throughput import Waiting, by_event

ROUNDS = 9
WAITING = 1_000
INTERVAL_S = 1.0


@contextmanager
def scraped(purgatory: DelayedOperationPurgatory) -> Iterator[None]:
    """Scrape the purgatory at once, and every second."""
    registry = CollectorRegistry()
    metrics.register(purgatory, registry)
    done = threading.Event()

    def scrape() -> None:
        while True:
            generate_latest(registry)
            if done.wait(INTERVAL_S):
                return

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        metrics.unregister(purgatory, registry)


def one_scrape_ms(purgatory: DelayedOperationPurgatory) -> float:
    """Return how long one scrape takes, with nothing else going on."""
    registry = CollectorRegistry()
    metrics.register(purgatory, registry)
    return min(seconds(lambda: generate_latest(registry)) for _ in range(20)) * 1e3


def measure(size: Size = Size.USUAL) -> list[Figure]:
    operations = size.pick(100, 150_000, 1_000_000)
    with DelayedOperationPurgatory("Produce") as purgatory:
        for number in range(WAITING):
            purgatory.try_complete_else_watch(Waiting(), [f"other-{number}"])

        def off() -> dict[str, float]:
            start_s = time.process_time()
            spent_s = seconds(lambda: by_event(purgatory, operations))
            return {"s": spent_s, "cpu_s": time.process_time() - start_s}

        def on() -> dict[str, float]:
            with scraped(purgatory):
                return off()

        spent = in_turns({"off": off, "on": on}, ROUNDS)
        scrape_ms = one_scrape_ms(purgatory)
        purgatory.close("leave")
    for name, times in spent.items():
        say(f"metrics {name:<4} {operations / times['s']:>9,.0f} operations/s")
    return [
        Figure(
            "time of watch, complete with metrics scraped each second, against none",
            spent["on"]["s"] / spent["off"]["s"],
            "x",
            1.05,
        ),
        Figure("the same in CPU time", spent["on"]["cpu_s"] / spent["off"]["cpu_s"], "x"),
        Figure("one scrape of one purgatory", scrape_ms, "ms"),
    ]


if __name__ == "__main__":
    run_alone(measure)
