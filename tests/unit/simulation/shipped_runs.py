"""The runs of the shipped scenarios, each simulated once for all processes of a test run.

Ground rules: who makes a run, or waits until it is made, holds its lock; nobody writes into one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow.parquet as pq

from purgatory.simulation import Simulation, load_scenario


class Shipped:
    """A shipped scenario's run: its summary and its trace."""

    def __init__(self, name: str, shared: Path) -> None:
        self.trace = shared / name
        summary = shared / f"{name}.json"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not summary.exists():
                returned = Simulation(load_scenario(name), trace_folder=self.trace).run()
                summary.write_text(json.dumps(returned), encoding="utf-8")
        self.summary = json.loads(summary.read_text(encoding="utf-8"))
        self.groups = {row["group"]: row for row in self.summary["producers"]}
        self.table = cache(lambda table: pq.read_table(self.trace / table))

    def link_to(self, folder: Path) -> None:
        """Have the trace in another place, too, among others."""
        shutil.copytree(self.trace, folder, copy_function=os.link)


ShippedRun = Callable[[str], Shipped]
"""Gives the run of a scenario by its name."""
