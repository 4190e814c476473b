"""Helpers of the tests of whole runs: small scenarios, and their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from purgatory.simulation import Simulation, apply_overrides, parse_scenario

HEAD = """
name = "small"
duration_ms = 1000

[topic]
partitions = 1
"""
"""One second of three brokers with one partition, whose leader is broker 0."""


@dataclass
class Ran:
    """A run that is over."""

    run: Simulation
    summary: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    trace: Path | None = None
    _tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def producers(self, group: str) -> dict[str, Any]:
        """The row of one producer group."""
        return next(row for row in self.summary["producers"] if row["group"] == group)

    def operations(self, purgatory: str, kind: str) -> dict[str, Any]:
        """The row of one purgatory and of who asks in it."""
        rows = self.summary["purgatories"]
        return next(row for row in rows if (row["purgatory"], row["kind"]) == (purgatory, kind))

    def told(self, name: str) -> list[dict[str, Any]]:
        """The fields of all events of one name."""
        return [fields for event, fields in self.events if event == name]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """A table of the trace, in the order in which it was written."""
        assert self.trace is not None
        if table not in self._tables:
            self._tables[table] = read_table(self.trace, table)
        return self._tables[table]


def read_table(trace: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table of a trace."""
    parts = sorted((trace / table).glob("part-*.parquet"))
    rows: list[dict[str, Any]] = []
    for part in parts:
        rows += pq.read_table(part).to_pylist()
    return rows


def run_scenario(text: str, trace: Path | None = None, seed: int | None = None) -> Ran:
    """Run a scenario given as TOML."""
    loaded = apply_overrides(parse_scenario(text, "test.toml", Path()), seed=seed)
    events: list[tuple[str, dict[str, Any]]] = []
    run = Simulation(
        loaded,
        trace_folder=trace,
        on_event=lambda name, **fields: events.append((name, fields)),
    )
    return Ran(run, run.run(), events, trace)
