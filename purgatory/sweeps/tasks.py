"""What a task of a sweep does: it runs its scenarios one after the other, and writes what they
come to.

Ground rules: this runs in Spark's Python workers. A scenario that fails is a row with its error. A
task that is run again, because its worker died, runs only what its predecessor had not written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog
from pydantic import ValidationError

from purgatory.simulation import (
    LoadedScenario,
    Scenario,
    Simulation,
    with_overrides,
)
from purgatory.sweeps.measures import measured
from purgatory.sweeps.sweep_file import problem_text, wording
from purgatory.sweeps.sweep_parts import done_keys, part_files, write_part
from purgatory.sweeps.sweep_plan import Plan

_WRITE_EVERY_S = 2.0
"""How many seconds of work are lost at most when a worker dies or the sweep is interrupted."""

TASK = pa.schema([("batch", pa.int64()), ("scenarios", pa.int64())])
"""What a task says at its end: its batch, and how many scenarios it ran."""

TASK_DDL = "batch bigint, scenarios bigint"
"""The same in Spark's words."""


@dataclass(frozen=True)
class Task:
    """What every task is told; the number of its batch tells it apart.

    Args:
        plan: all of the sweep.
        keys: of the scenarios to be run, by their number in the plan.
        batches: the numbers of each batch's scenarios.
        parts: the folder for the results.
        run: a name for this run of the sweep.
    """

    plan: Plan
    keys: dict[int, str]
    batches: Sequence[Sequence[int]]
    parts: Path
    run: str

    def __call__(self, arrived: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the batches whose numbers arrive: a function for `mapInArrow`."""
        quiet()
        for records in arrived:
            for batch in records.column(0).to_pylist():
                count = self.do(batch)
                yield pa.RecordBatch.from_pylist(
                    [{"batch": batch, "scenarios": count}], schema=TASK
                )

    def do(self, batch: int) -> int:
        """Do one batch, and say how many scenarios were run."""
        earlier = part_files(self.parts, self.run, batch)
        done = set(done_keys(earlier))
        todo = [number for number in self.batches[batch] if self.keys[number] not in done]
        rows: list[dict[str, Any]] = []
        part, written_s = len(earlier), time.monotonic()
        for number in todo:
            rows.append({"key": self.keys[number], **run_scenario(self.plan, number)})
            if time.monotonic() - written_s >= _WRITE_EVERY_S:
                write_part(self.parts, self.run, batch, part, rows)
                rows, part, written_s = [], part + 1, time.monotonic()
        if rows:
            write_part(self.parts, self.run, batch, part, rows)
        return len(todo)


def run_scenario(plan: Plan, number: int) -> dict[str, Any]:
    """Run one scenario of a plan, and return what it came to, or its error."""
    begin_s, computed_s = time.perf_counter(), time.process_time()
    try:
        row = _run(plan, number)
    except Exception as error:  # whatever it is, the other scenarios go on
        row = {"error": _described(error)}
    row["computed_s"] = time.process_time() - computed_s
    row["elapsed_s"] = time.perf_counter() - begin_s
    return row


def quiet() -> None:
    """Keep a simulation's log lines out of the worker's output, unless logging is set up there."""
    if not structlog.is_configured():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


class _TooLongError(Exception):
    """A scenario took longer than the sweep allows."""


def _run(plan: Plan, number: int) -> dict[str, Any]:
    document = plan.document(plan.point(number)) | {"seed": plan.seed(number)}
    scenario = Scenario.model_validate(document)
    # Bounds that depend on another key are checked where a scenario is changed.
    loaded = with_overrides(LoadedScenario(scenario, plan.folder, "scenario"), seed=scenario.seed)
    return measured(Simulation(loaded).run(_watched(plan.sweep.most_seconds)))


def _watched(most_s: float) -> Callable[[int], None]:
    """A function that ends a run which takes too long, called now and then as it goes."""
    last_s = time.process_time() + most_s

    def on_progress(now_ms: int) -> None:
        if time.process_time() > last_s:
            raise _TooLongError(
                f"took longer than {most_s:g} s (most_seconds in the sweep file), and got to "
                f"{now_ms:,} ms"
            )

    return on_progress


def _described(error: Exception) -> str:
    """An error in one line or, where several things are wrong, one for each."""
    if isinstance(error, ValidationError):
        return "\n".join(
            problem_text(".".join(map(str, item["loc"])), item["input"], wording(dict(item)))
            for item in error.errors(include_url=False)
        )
    if isinstance(error, _TooLongError):
        return str(error)
    return f"{type(error).__name__}: {error}"
