"""Produces per second of computing in a simulation, and the memory that a long run keeps.

    python -m tests.benchmarks.simulation_speed [--full]

Three brokers, three partitions with three replicas each, 100 producers of 200 records per second,
one record per request, acks=all. Each request goes over the simulated network to the leader, is
appended, waits in its Produce purgatory until both followers fetched it, and is answered. The same
is measured with three consumers that read everything, and with the trace written beside it.

Memory is the peak of a process of its own that runs it all: consumers and trace. With ``--full`` it
has ten times as many produces. The garbage collector is on, as in any run.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from purgatory.simulation import LoadedScenario, Simulation, parse_scenario
from tests.benchmarks.measurement import Figure, Size, in_turns, run_alone, say

ROUNDS = 3
PRODUCERS = 100
RATE = 200
ROOT = Path(__file__).parents[2]

_SCENARIO = """
name = "speed"
duration_ms = {duration_ms}

[topic]
partitions = 3

[[producers]]
group = "load"
count = {producers}
rate = {rate}
acks = "all"
"""
_CONSUMERS = """
[[consumers]]
group = "readers"
count = 3
"""


def scenario(produces: int, consumers: bool) -> LoadedScenario:
    duration_ms = produces * 1_000 // (PRODUCERS * RATE)
    text = _SCENARIO.format(duration_ms=duration_ms, producers=PRODUCERS, rate=float(RATE))
    return parse_scenario(text + _CONSUMERS * consumers, "simulation_speed.py", Path())


def produces_per_s(produces: int, *, consumers: bool, trace: bool) -> dict[str, float]:
    """Run once, and return how many produce requests a second of this process's time did."""
    with tempfile.TemporaryDirectory() as folder:
        run = Simulation(
            scenario(produces, consumers), trace_folder=Path(folder, "trace") if trace else None
        )
        begin_s = time.process_time()
        summary = run.run()
        spent_s = time.process_time() - begin_s
    (group,) = summary["producers"]
    assert group["acknowledged"] == group["records"] > 0, "every record was replicated"
    return {"per_s": group["requests"] / spent_s}


def print_peak_mib(produces: int) -> None:
    """Run with consumers and trace, and print the most memory that this process ever had."""
    with tempfile.TemporaryDirectory() as folder:
        Simulation(scenario(produces, True), trace_folder=Path(folder, "trace")).run()
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, KiB elsewhere
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)


def peak_mib(produces: int) -> float:
    """Return the peak memory of a process that runs so many produces."""
    code = f"from tests.benchmarks import simulation_speed as it; it.print_peak_mib({produces})"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return float(ran.stdout.splitlines()[-1])


def measure(size: Size = Size.USUAL) -> list[Figure]:
    produces = size.pick(400, 100_000)
    ways = {
        "alone": {"consumers": False, "trace": False},
        "and 3 consumers": {"consumers": True, "trace": False},
        "3 consumers and the trace": {"consumers": True, "trace": True},
    }
    per_s = in_turns(
        {
            name: lambda way=way: produces_per_s(produces, **way)  # type: ignore[misc]
            for name, way in ways.items()
        },
        size.pick(1, ROUNDS),
    )
    for name, measured in per_s.items():
        say(f"{name:<26} {measured['per_s']:>8,.0f} produces per second of computing")
    long = size.pick(2_000, 200_000, 2_000_000)
    what = "acks=all produces, 3 replicas"
    alone, *others = ways
    return [
        Figure(what, per_s[alone]["per_s"], "per s", 20_000, "higher"),
        *(Figure(f"{what}, {name}", per_s[name]["per_s"], "per s") for name in others),
        Figure(f"peak memory of {long:,} of them, with all that", peak_mib(long), "MiB", 1_024),
    ]


if __name__ == "__main__":
    run_alone(measure)
