"""A whole sweep, as the command runs it: scenarios, surfaces, answers and a page in one folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.sweeps.answers import Answer, answers
from purgatory.sweeps.axes import text
from purgatory.sweeps.surfaces import surfaces
from purgatory.sweeps.sweep_page import sweep_page
from purgatory.sweeps.sweep_plan import Plan
from purgatory.sweeps.sweep_run import (
    ANSWERS,
    REPORT,
    SURFACES,
    Progress,
    sweep,
    write_table,
)

MOST_NAMED_FAILURES = 20
"""How many scenarios that failed are named; the table `points` has all of them."""


@dataclass(frozen=True)
class Failure:
    """A scenario that failed: its settings in words, its seed and its error."""

    settings: str
    seed: int
    error: str


@dataclass(frozen=True)
class Sweep:
    """What a sweep came to.

    Args:
        points: the table of that name.
        surfaces: the table of that name.
        answers: to the questions of the sweep file.
        failed: how many scenarios failed.
        failures: the first of these.
        report: the page.
    """

    points: DataFrame
    surfaces: DataFrame
    answers: Sequence[Answer]
    failed: int
    failures: Sequence[Failure]
    report: Path


def sweep_all(
    session: SparkSession,
    plan: Plan,
    folder: Path,
    *,
    retry_failed: bool = False,
    on_progress: Callable[[Progress], object] | None = None,
) -> Sweep:
    """Run what is missing of a sweep, and write all tables, the answers and the page.

    Args and what is raised: as of `sweep`.
    """
    points = sweep(session, plan, folder, retry_failed=retry_failed, on_progress=on_progress)
    of_surfaces = write_table(session, surfaces(points, plan), folder.resolve(), SURFACES)
    found = answers(points, plan)
    bad = points.where(f.col("error").isNotNull())
    failed = bad.count()
    failures = named_failures(bad, plan) if failed else []
    plain = [answer.plain() for answer in found]
    _write(folder / ANSWERS, json.dumps(plain, indent=1))
    head = {
        "name": plan.sweep.name,
        "description": plan.sweep.description,
        "scenario": plan.sweep.scenario,
        "points": plan.points,
        "scenarios": plan.scenarios,
        "failed": failed,
    }
    rows = [row.asDict() for row in of_surfaces.collect()]  # a row per pair of values
    rows.sort(key=lambda row: (row["surface"], row["y_level"] or 0, row["x_level"]))
    named = [dict(vars(one)) for one in failures]
    _write(folder / REPORT, sweep_page(head, rows, plain, named, parquet=f"{SURFACES}/"))
    return Sweep(points, of_surfaces, found, failed, failures, folder / REPORT)


def named_failures(bad: DataFrame, plan: Plan) -> list[Failure]:
    """The first scenarios that failed, with their settings in words."""
    rows = bad.orderBy("point", "seed").limit(MOST_NAMED_FAILURES).collect()
    return [
        Failure(
            ", ".join(f"{axis.path} = {text(row[axis.column])}" for axis in plan.axes),
            row["seed"],
            row["error"],
        )
        for row in rows
    ]


def _write(path: Path, content: Any) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(content, encoding="utf-8")
    unfinished.replace(path)
