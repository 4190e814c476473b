"""The tasks of a sweep: batches of scenarios, and the parts into which tasks write results.

Ground rules
------------
* Tasks run in Spark's Python workers, one scenario after the other. A scenario that fails is a row
  with its error.
* A part never changes. A whole part is renamed; its name has its writer and the number of
  its scenarios, so that a listing of the folder shows the progress.
* A task that is run again, because its worker died, runs only scenarios without a result. A
  scenario may be in two parts: its measures are the same.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from pydantic import ValidationError

from purgatory.simulation import (
    LoadedScenario,
    Scenario,
    Simulation,
    apply_overrides,
)
from purgatory.sweeps.measures import RESULTS, measure_run
from purgatory.sweeps.plan import Plan
from purgatory.sweeps.sweep_file import SweepError, problem_text, wording

_SHARES_PER_CORE = 8
_SMALLEST_PER_CORE = 200
_NAME = re.compile(r"part-([0-9a-f]+)-(\d+)-(\d+)-n(\d+)\.parquet")
_WRITE_EVERY_S = 2.0
"""The work, in seconds, that is lost at most when a worker dies or the sweep is interrupted."""

TASK = pa.schema([("batch", pa.int64()), ("scenarios", pa.int64())])
"""The output of a task: its batch, and the number of scenarios that it ran."""

TASK_DDL = "batch bigint, scenarios bigint"
"""The same as Spark's DDL."""


# Tasks


@dataclass(frozen=True)
class Task:
    """All tasks of a run; each is called with the number of its batch.

    Args:
        plan: of the sweep.
        keys: of the scenarios to be run, by their number in the plan.
        batches: the numbers of the scenarios in each batch.
        parts: the folder of the results.
        run: the id of this run of the sweep.
    """

    plan: Plan
    keys: dict[int, str]
    batches: Sequence[Sequence[int]]
    parts: Path
    run: str

    def __call__(self, arrived: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the batches with these numbers: a function for `mapInArrow`."""
        quiet()
        for records in arrived:
            for batch in records.column(0).to_pylist():
                count = self.run_batch(batch)
                yield pa.RecordBatch.from_pylist(
                    [{"batch": batch, "scenarios": count}], schema=TASK
                )

    def run_batch(self, batch: int) -> int:
        """Run one batch; return the number of scenarios that were run."""
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
    """Run one scenario of a plan; return its measures, or its error."""
    begin_s, computed_s = time.perf_counter(), time.process_time()
    try:
        row = _run(plan, number)
    except Exception as error:  # the other scenarios continue after any error
        row = {"error": _error_text(error)}
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
    loaded = apply_overrides(LoadedScenario(scenario, plan.folder, "scenario"), seed=scenario.seed)
    return measure_run(Simulation(loaded).run(_time_limit(plan.sweep.most_seconds)))


def _time_limit(most_s: float) -> Callable[[int], None]:
    """A progress callback that raises if a run takes too long."""
    last_s = time.process_time() + most_s

    def on_progress(now_ms: int) -> None:
        if time.process_time() > last_s:
            raise _TooLongError(
                f"took longer than {most_s:g} s (most_seconds in the sweep file), and got to "
                f"{now_ms:,} ms"
            )

    return on_progress


def _error_text(error: Exception) -> str:
    """An error in one line or, where several things are wrong, one for each."""
    if isinstance(error, ValidationError):
        return "\n".join(
            problem_text(".".join(map(str, item["loc"])), item["input"], wording(dict(item)))
            for item in error.errors(include_url=False)
        )
    if isinstance(error, _TooLongError):
        return str(error)
    return f"{type(error).__name__}: {error}"


# Batches
#
# The most expensive scenarios come first, and each batch takes a share of the remaining cost:
# large batches at first, small ones at the end. All cores then end within about one small batch of
# each other, though the cost of a scenario is only estimated.


def batches(costs: Sequence[float], cores: int) -> list[list[int]]:
    """Divide scenarios into batches.

    Args:
        costs: the expected cost of each scenario, in any unit, at least 0.
        cores: the number of tasks that run at the same time.

    Returns:
        Lists of places in `costs`; each place is in exactly one of them. O(n log n).
    """
    order = sorted(range(len(costs)), key=lambda index: -costs[index])
    remaining = sum(costs)
    smallest = remaining / (_SMALLEST_PER_CORE * cores)
    dealt: list[list[int]] = []
    batch: list[int] = []
    share = sums = 0.0
    for index in order:
        if not batch:
            share, sums = max(remaining / (_SHARES_PER_CORE * cores), smallest), 0.0
        elif sums + costs[index] > share:
            dealt.append(batch)
            remaining -= sums
            batch, sums = [], 0.0
            share = max(remaining / (_SHARES_PER_CORE * cores), smallest)
        batch.append(index)
        sums += costs[index]
    if batch:
        dealt.append(batch)
    return dealt


def expected_cost(document: Mapping[str, Any]) -> float:
    """Estimate the number of requests in a scenario, to which its run time is proportional.

    Args:
        document: the scenario with all its keys.
    """
    duration_s = (document["duration_ms"] or 60_000) / 1000
    replicas = document["topic"]["replication_factor"]
    produces = sum(_produces(group, duration_s) for group in document["producers"])
    brokers = document["cluster"]["brokers"]
    followers = _fetches(brokers * (replicas - 1), document["followers"]["fetch_max_wait_ms"])
    consumers = sum(
        _fetches(group["count"], max(1, group["max_wait_ms"])) for group in document["consumers"]
    )
    readers = replicas - 1 + len(document["consumers"])
    return float(10 + produces * (1 + readers) + (followers + consumers) * duration_s)


def _produces(group: Mapping[str, Any], duration_s: float) -> float:
    """Estimate the produces of a group: at most its records, at least its full batches."""
    rate = (group["rate"] or 10.0) * group["count"]
    full = rate / group["batch_size"]
    most_by_linger = group["count"] * 1000 / group["linger_ms"] if group["linger_ms"] else rate
    return float(duration_s * min(rate, max(full, min(rate, most_by_linger))))


def _fetches(fetchers: int, max_wait_ms: float) -> float:
    """Estimate the empty fetches of some fetchers per second."""
    return float(fetchers * 1000 / max(1.0, max_wait_ms))


# Parts


def write_part(
    folder: Path, run: str, batch: int, number: int, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write results as a new part; all of them, or none."""
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=RESULTS)
    path = folder / f"part-{run}-{batch:05}-{number:05}-n{len(rows)}.parquet"
    unfinished = folder / f".{path.name}.{os.getpid()}"  # Spark and pyarrow skip such names
    pq.write_table(table, unfinished, compression="zstd")
    unfinished.replace(path)


def part_files(folder: Path, run: str | None = None, batch: int | None = None) -> list[Path]:
    """The whole parts: all of them, of one run, or of one batch of a run."""
    start = "part-" if run is None else f"part-{run}-"
    start += "" if batch is None else f"{batch:05}-"
    if not folder.is_dir():
        return []
    names = [entry.name for entry in os.scandir(folder) if entry.name.startswith(start)]
    return [folder / name for name in sorted(names) if _NAME.fullmatch(name)]


def rows_written(folder: Path, run: str) -> int:
    """The number of results that the tasks of a run have written so far. O(files)."""
    names = (_NAME.fullmatch(path.name) for path in part_files(folder, run))
    return sum(int(name[4]) for name in names if name is not None)


def done_keys(paths: Iterable[Path], *, failed: bool = True) -> Iterator[str]:
    """The keys in some parts; without those that failed if `failed` is False.

    Raises:
        SweepError: a file is no part.
    """
    for path in paths:
        try:
            table = pq.read_table(path, columns=["key", "error"])
        except (OSError, pa.ArrowException, KeyError) as error:
            raise SweepError(
                f"{path}: is no part of a sweep's results: remove it, and what it had is run again"
            ) from error
        for key, problem in zip(*(column.to_pylist() for column in table.columns), strict=True):
            if failed or problem is None:
                yield key


def remove_unfinished(folder: Path) -> None:
    """Remove unfinished parts of runs that were killed."""
    for path in folder.glob(".part-*"):
        path.unlink(missing_ok=True)


def adopt_parts(written: Path, folder: Path) -> None:
    """Move the files of a table that Spark wrote to a folder of parts, under names of parts."""
    run = secrets.token_hex(6)
    for number, file in enumerate(sorted(written.glob("part-*.parquet"))):
        rows = pq.read_metadata(file).num_rows
        file.rename(folder / f"part-{run}-{0:05}-{number:05}-n{rows}.parquet")
