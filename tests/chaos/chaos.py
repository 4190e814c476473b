"""Hours of a cluster in virtual time, full of faults, judged by the invariants and the audit.

    make chaos SEED=20261122                 # for two minutes
    make chaos SEED=17 HOURS=1               # that one hour again
    python -m tests.chaos.chaos --seed 17 --hours 1 --no-audit

Each hour is a scenario of its own (`chaos_scenario`), of the seed, the next one, and so on. Each
problem is printed with the seed and the command that repeats it; the exit status is 1 then.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import structlog

from purgatory.simulation import InvariantViolation, Simulation
from tests.chaos.chaos_scenario import chaos_scenario
from tests.chaos.promises import broken_promises


def run_hour(
    seed: int, hours: float, trace: Path | None = None
) -> tuple[Mapping[str, Any] | None, list[str]]:
    """Run one scenario.

    Returns:
        Its summary, or None if an invariant was violated; and the problems.
    """
    run = Simulation(chaos_scenario(seed, hours), trace_folder=trace)
    try:
        summary = run.run()
    except InvariantViolation as violation:
        return None, [str(violation)]
    return summary, list(broken_promises(summary))


@click.command()
@click.option("--seed", type=click.IntRange(0), required=True, help="Seed of the first hour.")
@click.option("--hours", type=click.FloatRange(0.001), help="Number of hours of the cluster.")
@click.option("--seconds", type=click.FloatRange(1), default=120, help="Without --hours.")
@click.option("--audit/--no-audit", default=True, help="Audit the traces, too.")
def main(seed: int, hours: float | None, seconds: float, audit: bool) -> None:
    """Run hours of chaos, audit them, and print the problems."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory(prefix="purgatory-chaos-") as folder:
        wrong = _run_all(_scenarios(seed, hours, seconds), seed, Path(folder) if audit else None)
        if audit:
            wrong += _audit(Path(folder))
    raise click.exceptions.Exit(1 if wrong else 0)


def _scenarios(seed: int, hours: float | None, seconds: float) -> Iterator[tuple[int, float]]:
    """The seed and the hours of each scenario."""
    ends_s = time.monotonic() + seconds
    left = hours
    while left is None or left > 0:
        yield seed, 1.0 if left is None else min(1.0, left)
        seed += 1
        if left is not None:
            left -= 1
        elif time.monotonic() >= ends_s:
            return


def _run_all(scenarios: Iterator[tuple[int, float]], first_seed: int, folder: Path | None) -> int:
    """Run all; print their totals; return the number of broken promises."""
    counts: Counter[str] = Counter()
    virtual_hours, began_s = 0.0, time.process_time()
    for seed, hours in scenarios:
        summary, problems = run_hour(seed, hours, None if folder is None else folder / str(seed))
        virtual_hours += hours
        counts["broken"] += len(problems)
        for problem in problems:
            print(f"seed {seed}: {problem}", f"  make chaos SEED={seed} HOURS={hours:g}", sep="\n")
        if summary is not None:
            counts["faults"] += summary["faults"]
            counts["elections"] += summary["elections"]
            counts["records"] += sum(row["records"] for row in summary["producers"])
    spent_s = time.process_time() - began_s
    print(
        f"chaos from seed {first_seed}: {virtual_hours:g} hours of a cluster in {spent_s:.0f} s of "
        f"one core, {virtual_hours / spent_s * 3_600:,.0f} an hour: {counts['faults']:,} faults, "
        f"{counts['elections']:,} elections, {counts['records']:,} records; "
        f"promises broken: {counts['broken']}",
        flush=True,
    )
    return counts["broken"]


def _audit(folder: Path) -> int:
    """Audit all traces at once; return 1 if any has a violation."""
    traces = sorted(map(str, folder.iterdir()))
    command = [sys.executable, "-m", "purgatory", "audit", "--engine", "duckdb", *traces]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        print(ran.stdout, ran.stderr, sep="\n")
    print(f"the audit of these {len(traces)} traces ended with status {ran.returncode}")
    return 1 if ran.returncode else 0


if __name__ == "__main__":
    main()
