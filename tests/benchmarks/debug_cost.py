"""The cost of a request to the debug pages' state while many operations wait.

    python -m tests.benchmarks.debug_cost

A million operations wait, each on a key that all share and on one of 1,000. A request is what
``debug.wsgi_app`` does for ``state``, JSON included. The part under the purgatory's lock, which
blocks all changes, is measured by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from purgatory import DelayedOperationPurgatory, debug
from purgatory.core.locks import StateLock
from tests.benchmarks.measurement import Figure, Size, run_alone, seconds
from tests.benchmarks.purgatory_throughput import Waiting

REQUESTS = 51


def measure(size: Size = Size.USUAL) -> list[Figure]:
    waiting = size.pick(2_000, 1_000_000)
    requests = size.pick(3, REQUESTS)
    with DelayedOperationPurgatory("Fetch", reaper_enabled=False) as purgatory:
        for number in range(waiting):
            purgatory.try_complete_else_watch(Waiting(), ["all", number % 1_000])
        application = debug.wsgi_app([purgatory])
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/state"}

        def request() -> None:
            application(environ, lambda *_: None)  # type: ignore[arg-type]

        spent_s = [seconds(request) for _ in range(requests)]
        state = purgatory._state
        under_lock: list[Callable[[], object]] = [
            lambda: state.pending_ends(1_000),
            lambda: state.watchers.count_on("all", 10_000),
            state.counters.snapshot,
            state.oldest,
        ]
        held_s = max(min(_held(state.lock, work) for _ in range(requests)) for work in under_lock)
        purgatory.close("leave")
    return [
        Figure(f"a request for the state, {waiting:,} waiting", median(spent_s) * 1e3, "ms", 20),
        Figure("the longest of them", max(spent_s) * 1e3, "ms", 20),
        Figure("the longest section under the lock", held_s * 1e3, "ms", 1),
    ]


def _held(lock: StateLock, work: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    with lock:
        work()
    return time.perf_counter() - begin_s


if __name__ == "__main__":
    run_alone(measure)
