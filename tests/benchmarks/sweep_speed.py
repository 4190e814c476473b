"""The load of two cores by a sweep of 1,000 scenarios.

    python -m tests.benchmarks.sweep_speed [--full]

A grid over timeouts, lags and loads whose scenarios cost up to fifty times as much as one another,
on a Spark session of two threads that is open already. The measurement begins when the tasks are
handed to Spark and ends when the last one is done: the start of the Python workers counts, and
the wait of one core for the other at the end.

A core is busy while a simulation runs on it. By the clock, that holds on a busy machine too; in the
processor's time, on an idle one only: there the two are nearly the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from purgatory.pipeline.engines.spark.session import spark_session
from purgatory.sweeps.plan import Plan, parse_plan
from purgatory.sweeps.run import sweep
from tests.benchmarks.measurement import Figure, Size, run_alone, say

CORES = 2
ROOT = Path(__file__).parents[2]

_BASE = """
name = "small"
duration_ms = 1_000

[[producers]]
group = "load"
count = 4
rate = 20.0

[[consumers]]
group = "readers"
count = 2
"""
_SWEEP = """
name = "speed"
scenario = "small.toml"
repetitions = {repetitions}

[grid]
"producers[load].timeout_ms" = [10, 50, 100, 500, 1_000]
"followers.lag_ms" = [1, 5, 20, 100, 400]
"producers[load].rate" = [2.0, 5.0, 15.0, 40.0]
"""
_POINTS = 100


def plan_of(scenarios: int, folder: Path) -> Plan:
    (folder / "small.toml").write_text(_BASE, encoding="utf-8")
    text = _SWEEP.format(repetitions=max(1, scenarios // _POINTS))
    if scenarios < _POINTS:
        text = text.replace("5, 20, 100, 400", "5").replace("50, 100, 500, 1_000", "50")
    return parse_plan(text, "sweep_speed.py", folder)


def run_sweep(session: SparkSession, scenarios: int) -> dict[str, float]:
    """Run a sweep, and return what it took and how much of the cores' time was in simulations."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = plan_of(scenarios, folder)
        seen_s: list[float] = []
        points = sweep(
            session, plan, folder / "out", on_progress=lambda _: seen_s.append(time.perf_counter())
        )
        # The first look comes a quarter of a second after the start, the last one after the end.
        took_s = seen_s[-1] - seen_s[0] + 0.25
        (row,) = points.agg(
            f.count("*").alias("scenarios"),
            f.count("error").alias("failed"),
            f.sum("computed_s").alias("computed_s"),
            f.sum("elapsed_s").alias("elapsed_s"),
            (f.max("computed_s") / f.min("computed_s")).alias("spread"),
        ).collect()
    assert row["failed"] == 0 and row["scenarios"] == plan.scenarios
    return {
        "took_s": took_s,
        "per_s": row["scenarios"] / took_s,
        "by_clock": 100 * row["elapsed_s"] / (CORES * took_s),
        "by_processor": 100 * row["computed_s"] / (CORES * took_s),
        "spread": row["spread"],
    }


def print_sweep(scenarios: int) -> None:
    """Run a sweep in a session of its own, and print what was measured as JSON."""
    with spark_session(f"local[{CORES}]", rows=0) as session:
        print(json.dumps(run_sweep(session, scenarios)))


def run_apart(scenarios: int) -> dict[str, float]:
    """The same in a process of its own: one has at most one Spark session."""
    code = f"from tests.benchmarks import sweep_speed as it; it.print_sweep({scenarios})"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    measured: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return measured


def measure(size: Size = Size.USUAL) -> list[Figure]:
    scenarios = size.pick(16, 1_000, 10_000)
    ran = run_apart(scenarios)
    say(
        f"{scenarios:,} scenarios in {ran['took_s']:.1f} s; the most expensive took "
        f"{ran['spread']:.0f} times as long as the cheapest"
    )
    what = f"sweep of {scenarios:,} scenarios on {CORES} cores"
    return [
        Figure(f"{what}: both busy, by the clock", ran["by_clock"], "%", 90, "higher"),
        Figure(f"{what}: both busy, in the processor's time", ran["by_processor"], "%"),
        Figure(f"{what}: scenarios done", ran["per_s"], "per s"),
    ]


if __name__ == "__main__":
    run_alone(measure)
