"""Runs the benchmarks, each in its own process, and prints all figures in one table.

    make bench                                     # all
    python -m tests.benchmarks.run NAME ...        # some of them
    python -m tests.benchmarks.run --full          # with what takes minutes and gigabytes more

Other output of a benchmark is shown as it comes. The exit status is 1 if a benchmark
failed, and 0 if all ran, whether or not their targets were met.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.measurement import Figure, table

ROOT = Path(__file__).parents[2]
BENCHMARKS = (
    "timer_add_cancel",
    "timer_cost_per_task",
    "timer_memory",
    "timer_lateness",
    "timer_cascade",
    "timer_stall",
    "purgatory_cost",
    "purgatory_throughput",
    "threshold_waits",
    "simulation_speed",
    "sweep_speed",
    "metrics_cost",
    "debug_cost",
    "view_frames",
    "view_cost",
    "long_poll",
    "cluster_speed",
    "cluster_transactions",
    "cluster_groups",
    "cluster_fairness",
    "cluster_rivals",
    "engines_cost",
    "recorded_cost",
    "proxy_cost",
    "world_speed",
    "world_rivals",
    "pipeline_scale",
    "pipeline_start",
    "capture_speed",
    "apply_speed",
    "apply_start",
    "stream_speed",
    "stream_start",
    "shared_relays",
)


def run_one(name: str, arguments: Sequence[str]) -> list[Figure] | None:
    """Run a benchmark in a process of its own, and return its figures; None if it failed."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    start = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-m", f"tests.benchmarks.{name}", "--json", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=ROOT,
    )
    print(f"... {time.monotonic() - start:.0f} s\n", file=sys.stderr, flush=True)
    if ran.returncode != 0:
        return None
    figures = [Figure(**figure) for figure in json.loads(ran.stdout.splitlines()[-1])]
    for fault in faults(figures):
        print(f"{name}: {fault}", file=sys.stderr)
    return None if faults(figures) else figures


def faults(figures: Sequence[Figure]) -> list[str]:
    """The errors in the figures of a benchmark, whatever they are."""
    times = Counter(figure.name for figure in figures)
    return [
        *([] if figures else ["it has no figures"]),
        *(f"two figures are called {name!r}" for name, number in times.items() if number > 1),
        *(
            f"{figure.name!r} is {figure.value}"
            for figure in figures
            if not (math.isfinite(figure.value) and figure.value >= 0)
        ),
        *(
            ["no figure has a target"]
            if figures and all(figure.target is None for figure in figures)
            else []
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--full", action="store_true", help="measurements that take minutes, too")
    parser.add_argument("--small", action="store_true", help="only see whether they run")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    passed_on = [f"--{name}" for name in ("full", "small") if getattr(options, name)]
    found = {name: run_one(name, passed_on) for name in options.names or BENCHMARKS}
    names = [figure.name for figures in found.values() for figure in figures or []]
    width = max(map(len, names), default=0)
    for name, figures in found.items():
        print(f"{name}\n{table(figures, width) if figures else 'FAILED: see its error above'}\n")
    _print_verdict(found)
    return int(None in found.values())


def _print_verdict(found: dict[str, list[Figure] | None]) -> None:
    with_target = [
        figure
        for figures in found.values()
        for figure in figures or []
        if figure.target is not None
    ]
    missed = [figure.name for figure in with_target if not figure.met]
    failed = [name for name, figures in found.items() if figures is None]
    print(f"{len(with_target) - len(missed)} of {len(with_target)} targets met")
    if missed:
        print("not met: " + "; ".join(missed))
    if failed:
        print("failed: " + ", ".join(failed))


if __name__ == "__main__":
    sys.exit(main())
