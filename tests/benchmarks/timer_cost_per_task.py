"""The whole cost of a timeout, from the adding to its end, by how many are outstanding.

    python -m tests.benchmarks.timer_cost_per_task [--full]

All are added, with delays of 1 to 60 s; nine of ten are cancelled, in order of arrival; then the
time passes and the rest run. The processor's time for all of that is divided by the number of
timeouts, so that work a rival defers is counted. Up to 1,000,000 outstanding; with ``--full`` up to
10,000,000, and the plot docs/cost-per-task.svg is drawn anew. The SQL table goes to a tenth of
that.

A table must be asked what is due: how late timeouts run by the interval of the polls, and what the
polls cost, is measured in real time, with 1,000 timeouts per second beside 100,000 that wait.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from tests.benchmarks.measurement import Figure, Size, collector_off, in_turns, run_alone, say
from tests.benchmarks.rivals import Asyncio, Heap, Rival, SqlTable, Wheel

PLOT = Path(__file__).parents[2] / "docs" / "cost-per-task.svg"
RIVALS: dict[str, type[Rival]] = {
    "timing wheel": Wheel,
    "heap, lazy deletion": Heap,
    "asyncio": Asyncio,
    "SQL table": SqlTable,
}
IN_MEMORY = [name for name in RIVALS if name != "SQL table"]
CANCELLED_OF_TEN = 9
MOVES = 10
END_MS = 61_000
POLLS_MS = (10, 100, 1_000)


def life_of_all_s(kind: type[Rival], outstanding: int) -> float:
    """Return how long it takes to add, cancel and run so many timeouts."""
    delays_ms = random.Random(outstanding).choices(range(1_000, 60_001), k=outstanding)
    rival = kind()
    start = time.thread_time()
    timeouts = [rival.add(delay_ms) for delay_ms in delays_ms]
    for number, timeout in enumerate(timeouts):
        if number % 10 < CANCELLED_OF_TEN:
            rival.cancel(timeout)
    timeouts.clear()
    for move in range(1, MOVES + 1):
        rival.advance_to(END_MS * move // MOVES)
    spent_s = time.thread_time() - start
    rival.close()
    return spent_s


def cost_us(outstanding: int, names: list[str], rounds: int, repeats: int) -> dict[str, float]:
    """Return microseconds per timeout of each rival, medians of rounds in turns."""

    def turn(kind: type[Rival]) -> Mapping[str, float]:
        spent_s = sum(life_of_all_s(kind, outstanding) for _ in range(repeats))
        return {"us": spent_s / repeats / outstanding * 1e6}

    with collector_off():
        measured = in_turns(
            {name: lambda kind=RIVALS[name]: turn(kind) for name in names},  # type: ignore[misc]
            rounds,
        )
    costs = {name: steps["us"] for name, steps in measured.items()}
    said = ", ".join(f"{name} {us:.2f}" for name, us in costs.items())
    say(f"{outstanding:>10,} outstanding, us each: {said}")
    return costs


def costs_by_outstanding(most: int, rounds: int) -> dict[str, dict[int, float]]:
    """Return microseconds per timeout by rival and number outstanding."""
    costs: dict[str, dict[int, float]] = {name: {} for name in RIVALS}
    outstanding = min(1_000, most // 10)
    while outstanding <= most:
        repeats = 1 if rounds == 1 else max(1, 20_000 // outstanding)
        turns = 1 if outstanding > 1_000_000 else rounds
        found = cost_us(outstanding, IN_MEMORY, turns, repeats)
        if outstanding * 10 <= most:
            # A minute for a million rows tells no more than ten seconds for a tenth.
            found |= cost_us(outstanding, ["SQL table"], 1, 1)
        for name, us in found.items():
            costs[name][outstanding] = us
        outstanding *= 10
    return costs


def polled_table(interval_ms: int, waiting: int, seconds: float) -> dict[str, float]:
    """Poll a table in real time; return lateness in ms, and the share of the time it took."""
    table = SqlTable()
    table.database.execute("BEGIN")
    for _ in range(waiting):
        table.add(3_600_000)
    choose = random.Random(interval_ms)
    for _ in range(int(seconds * 1_000)):
        table.add(choose.randrange(int(seconds * 1_000)))
    table.database.execute("COMMIT")
    late_ms: list[float] = []
    busy_s = 0.0
    start = time.monotonic()
    end = start + seconds + 2 * interval_ms / 1_000
    while time.monotonic() < end:
        time.sleep(interval_ms / 1_000)
        begun = time.monotonic()
        due_ms = table.take_due(int((begun - start) * 1_000))
        done = time.monotonic()
        late_ms += [(done - start) * 1_000 - one_ms for one_ms in due_ms]
        busy_s += done - begun
    table.close()
    late_ms.sort()
    return {
        "p50": median(late_ms),
        "p99": late_ms[int(len(late_ms) * 0.99)],
        "busy": busy_s / (end - start),
    }


def polled_figures(size: Size) -> list[Figure]:
    figures = []
    for interval_ms in size.pick((10,), POLLS_MS):
        found = polled_table(interval_ms, size.pick(100, 100_000), size.pick(0.05, 3.0))
        polled = f"SQL table polled every {interval_ms:,} ms"
        figures += [
            Figure(f"{polled}: lateness, p50", found["p50"], "ms"),
            Figure(f"{polled}: lateness, p99", found["p99"], "ms"),
            Figure(f"{polled}: busy", found["busy"] * 100, "%"),
        ]
    return figures


def measure(size: Size = Size.USUAL) -> list[Figure]:
    most = size.pick(1_000, 1_000_000, 10_000_000)
    costs = costs_by_outstanding(most, rounds=size.pick(1, 3))
    if size is Size.FULL:
        from tests.benchmarks.cost_plot import draw

        draw(costs, PLOT)
        say(f"drew {PLOT}")
    wheel, heap, loop, table = costs.values()
    least = min(wheel)
    return [
        Figure(f"a timeout at {most:,}: wheel / heap", wheel[most] / heap[most], "x", 1),
        Figure(f"a timeout at {most:,}: wheel / asyncio", wheel[most] / loop[most], "x", 1),
        Figure(
            f"wheel, a timeout at {most:,} / at {least:,}", wheel[most] / wheel[least], "x", 1.5
        ),
        Figure(f"heap, a timeout at {most:,} / at {least:,}", heap[most] / heap[least], "x"),
        Figure(f"asyncio, a timeout at {most:,} / at {least:,}", loop[most] / loop[least], "x"),
        Figure(f"wheel, a timeout at {most:,}", wheel[most], "us"),
        Figure(f"SQL table, a timeout at {max(table):,}", table[max(table)], "us"),
        *polled_figures(size),
    ]


if __name__ == "__main__":
    run_alone(measure)
