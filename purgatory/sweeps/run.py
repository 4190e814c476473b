"""The run of a sweep: simulations on Spark's executors, and their results in one table.

    plan = load_plan("sweep.toml")
    points = sweep(session, plan, Path("out"))

The folder must have the same path on the driver and on the workers.

Ground rules
------------
* Tasks write results while they run, under keys of everything that these depend on; so no scenario
  is run twice, neither in another run of the same sweep nor in an extended one.
* The tables are computed from these at the end of every run, and replace the old ones as a whole.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline.engines.progress import EngineProgress
from purgatory.pipeline.engines.result_folder import names_in, refuse_foreign
from purgatory.pipeline.engines.spark.connect import is_connect
from purgatory.pipeline.engines.spark.frames import run_chain
from purgatory.pipeline.engines.spark.job_threads import cancel_tagged_jobs, tag_jobs
from purgatory.pipeline.errors import OutputError, PipelineError
from purgatory.pipeline.ingest.trace_set import spark_path
from purgatory.pipeline.jobs.chain import Statement, order_by, quoted, read_chain
from purgatory.pipeline.jobs.registry import SWEEP
from purgatory.pipeline.result_rows import text
from purgatory.pipeline.signals import defer_signals
from purgatory.sweeps.answers import Answer, answers
from purgatory.sweeps.basis import SweepBasis
from purgatory.sweeps.heatmaps import heatmaps
from purgatory.sweeps.page import ANSWERS, HEAD, HEATMAPS, sweep_page
from purgatory.sweeps.plan import Plan, code_digest, load_plan
from purgatory.sweeps.tasks import (
    TASK_DDL,
    Task,
    adopt_parts,
    batches,
    done_keys,
    expected_cost,
    part_files,
    remove_unfinished,
    rows_written,
)

PARTS = "parts"
POINTS = "points"
REPORT = "sweep.html"
_POINTS_ORDER = SWEEP.outputs[POINTS]
_OURS = frozenset({HEAD, PARTS, POINTS, HEATMAPS, ANSWERS, REPORT})

_CORES_UNKNOWN = 32
_MOST_PARTS = 64
_CANCEL_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.25
_PLAN = "plan.parquet"


def sweep(
    session: SparkSession,
    plan: Plan | str | Path,
    folder: str | Path,
    *,
    retry_failed: bool = False,
    cores: int | None = None,
    ship: bool | None = None,
    on_progress: Callable[[EngineProgress], object] | None = None,
) -> DataFrame:
    """Run the missing scenarios of a sweep, and return the table of all of them.

    Args:
        session: an open session, of Spark or Spark Connect.
        plan: the sweep, or the path of its file.
        folder: where the results are kept; made if it is not there.
        retry_failed: run again what failed in earlier runs.
        cores: how many tasks run at the same time; by default the session's parallelism.
        ship: whether to send this project to the workers; by default if they are not on this
            machine.
        on_progress: called a few times a second while scenarios run, with the number of those that
            are done, of those without a result before.

    Returns:
        The table `points`: a row per scenario, in the order of the plan. See `docs/sweep.md`.

    Raises:
        SweepError: the sweep's file is not as it must be.
        OutputError: the folder holds something else.
        KeyboardInterrupt: finished scenarios are kept; the same call resumes.
    """
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    out = Path(folder).resolve()
    prepare_folder(out, plan)
    numbers = missing(plan, out, retry_failed=retry_failed)
    if numbers:
        is_local = not is_connect(session) and str(session.sparkContext.master).startswith("local")
        if not is_local if ship is None else ship:
            ship_package(session, out / PARTS)
        task = _task(plan, numbers, out / PARTS, cores or _cores(session))
        _run(session, task, len(numbers), on_progress)
    merge_parts(session, out)
    return write_points(session, plan, out)


def prepare_folder(out: Path, plan: Plan) -> None:
    """Make the folder of results, or see that it is one.

    Raises:
        OutputError: it holds something else, or can't be made.
    """
    try:
        check_folder(out)
        (out / PARTS).mkdir(parents=True, exist_ok=True)
        remove_unfinished(out / PARTS)
        head = {
            "sweep": plan.sweep.name,
            "code": code_digest(),
            "points": plan.points,
            "scenarios": plan.scenarios,
            "file": json.loads(plan.sweep.model_dump_json(by_alias=True, exclude_none=True)),
        }
        with suppress(FileNotFoundError, ValueError):  # the basis of the answers that are there
            earlier = json.loads((out / HEAD).read_text(encoding="utf-8"))
            head |= {name: earlier[name] for name in ("basis", "failures") if name in earlier}
        (out / HEAD).write_text(json.dumps(head, indent=1), encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"--out {out}: can't be used: {error.filename}: {error.strerror}"
        ) from error


def check_folder(out: Path) -> None:
    """Refuse a place for the results that holds something else.

    Raises:
        OutputError: saying what is there.
    """
    entries = names_in(out)
    refuse_foreign(str(out), entries, _OURS, "a sweep")
    if entries and HEAD not in entries:
        raise OutputError(f"--out {out}: holds no sweep ({HEAD} is missing); name another folder")


def missing(plan: Plan, out: Path, *, retry_failed: bool = False) -> dict[int, str]:
    """The numbers and keys of the scenarios without a result in the folder. O(scenarios)."""
    done = set(done_keys(part_files(out / PARTS), failed=not retry_failed))
    return {number: key for number, key in enumerate(plan.keys()) if key not in done}


def results(session: SparkSession, plan: Plan, out: Path) -> DataFrame:
    """The results so far beside the plan: a row per scenario, in the order of the plan.

    A scenario that is not done yet has no results; one that was done twice, by tasks that were run
    again, or tried again after it failed, has one row: the one without an error, if there is one.
    """
    pq.write_table(plan.table(), out / PARTS / _PLAN)
    inputs = {
        "plan": session.read.parquet(spark_path(out / PARTS / _PLAN)),
        "results": session.read.parquet(*map(spark_path, part_files(out / PARTS))),
    }
    columns = dict.fromkeys([*inputs["plan"].columns, *inputs["results"].columns])
    query = f"select {quoted(columns)} from planned_results order by {order_by(_POINTS_ORDER)}"
    chain = [*read_chain("sweeps/points.sql"), Statement(POINTS, False, query)]
    return run_chain(inputs, chain, [POINTS])[0]


def write_points(session: SparkSession, plan: Plan, out: Path) -> DataFrame:
    """Write the table `points` in its place, and return it."""
    return write_table(session, results(session, plan, out), out, POINTS)


def write_table(session: SparkSession, rows: DataFrame, out: Path, name: str) -> DataFrame:
    """Write a table beside its place, put it there when it is whole, and return it."""
    working = out / PARTS / f".{name}-{secrets.token_hex(4)}"
    aside = working.with_suffix(".replaced")
    try:
        rows.write.parquet(spark_path(working))
        if (out / name).exists():
            (out / name).rename(aside)
        working.rename(out / name)
    except OSError:
        if aside.exists() and not (out / name).exists():
            aside.rename(out / name)
        raise
    finally:
        for folder in (working, aside):
            shutil.rmtree(folder, ignore_errors=True)
    return session.read.parquet(spark_path(out / name))


def merge_parts(session: SparkSession, out: Path) -> None:
    """Make few parts of many, once there are too many to be opened quickly."""
    files = part_files(out / PARTS)
    if len(files) <= _MOST_PARTS:
        return
    working = out / PARTS / f".merged-{secrets.token_hex(4)}"
    try:
        done = session.read.parquet(*map(spark_path, files))
        done.coalesce(1 + len(files) // 1000).write.parquet(spark_path(working))
        adopt_parts(working, out / PARTS)
        for file in files:
            file.unlink()
    finally:
        shutil.rmtree(working, ignore_errors=True)


def _task(plan: Plan, numbers: dict[int, str], parts: Path, cores: int) -> Task:
    """Divide the missing scenarios into batches, by the expected cost of each point."""
    cost_of_point = cache(lambda point: expected_cost(plan.document(point)))
    resolve_path = list(numbers)
    costs = [cost_of_point(plan.point(number)) for number in resolve_path]
    dealt = [[resolve_path[index] for index in batch] for batch in batches(costs, cores)]
    return Task(plan, numbers, dealt, parts, secrets.token_hex(6))


def _run(
    session: SparkSession,
    task: Task,
    todo: int,
    on_progress: Callable[[EngineProgress], object] | None,
) -> None:
    """Run all batches as one job, while this thread reports progress and can be interrupted."""
    failed: list[BaseException] = []

    def job() -> None:
        try:
            tag_jobs(session, task.run)
            count = len(task.batches)
            spread = session.range(0, count, 1, count).mapInArrow(task, TASK_DDL)
            spread.write.format("noop").mode("append").save()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=job, name="sweep", daemon=True)
    with defer_signals():  # one in there would break off the work of a lock
        thread.start()
    try:
        wait_s = _LOOK_EVERY_S
        while thread.is_alive():
            thread.join(wait_s)
            if on_progress is not None:
                begin_s = time.monotonic()
                done = rows_written(task.parts, task.run)
                on_progress(EngineProgress(f"{done:,} of {todo:,} scenarios done", done, todo))
                # A folder of very many parts takes long to look at: then it is done less often.
                wait_s = max(_LOOK_EVERY_S, 20 * (time.monotonic() - begin_s))
    except BaseException:
        with suppress(PySparkException, Py4JError):
            cancel_tagged_jobs(session, task.run)
        thread.join(_CANCEL_TIMEOUT_S)
        raise
    if failed:
        raise _error_text(failed[0])


def _error_text(error: BaseException) -> BaseException:
    """Return an error that names what to install on the workers; otherwise Spark's own."""
    lacks = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", str(error))
    if lacks is None:
        return error
    return PipelineError(
        f"a worker has no Python package {lacks[1]!r}: install pydantic, pyarrow, structlog and "
        "prometheus-client for the workers' Python (PYSPARK_PYTHON)"
    )


def _cores(session: SparkSession) -> int:
    if is_connect(session):
        return _CORES_UNKNOWN  # too many only makes for more, smaller batches
    return int(session.sparkContext.defaultParallelism)


# A whole sweep: scenarios, heat maps, answers and a page in one folder.


MOST_NAMED_FAILURES = 20
"""The number of failed scenarios that are named; the table `points` has all of them."""


@dataclass(frozen=True)
class Failure:
    """A scenario that failed: its settings in words, its seed and its error."""

    settings: str
    seed: int
    error: str


@dataclass(frozen=True)
class Sweep:
    """The results of a sweep.

    Args:
        points: the table of that name.
        heatmaps: the table of that name.
        answers: to the questions of the sweep file.
        basis: what the answers rest on.
        failures: the first scenarios that failed.
        report: the page.
    """

    points: DataFrame
    heatmaps: DataFrame
    answers: Sequence[Answer]
    basis: SweepBasis
    failures: Sequence[Failure]
    report: Path


def sweep_all(
    session: SparkSession,
    plan: Plan,
    folder: Path,
    *,
    retry_failed: bool = False,
    on_progress: Callable[[EngineProgress], object] | None = None,
) -> Sweep:
    """Run the missing scenarios of a sweep, and write all tables, the answers and the page.

    Args and what is raised: as of `sweep`.
    """
    points = sweep(session, plan, folder, retry_failed=retry_failed, on_progress=on_progress)
    heatmap_table = write_table(session, heatmaps(points, plan), folder.resolve(), HEATMAPS)
    all_answers = answers(points, plan)
    basis, failures = judged_scenarios(points, plan)
    plain = [answer.plain() for answer in all_answers]
    _write(folder / ANSWERS, json.dumps(plain, indent=1))
    head = {
        "name": plan.sweep.name,
        "description": plan.sweep.description,
        "scenario": plan.sweep.scenario,
        "points": plan.points,
        "basis": basis,
    }
    rows = [row.asDict() for row in heatmap_table.collect()]  # a row per pair of values
    rows.sort(key=lambda row: (row["heatmap"], row["y_level"] or 0, row["x_level"]))
    failure_rows = [asdict(failure) for failure in failures]
    head_file = folder / HEAD
    judged = {"basis": asdict(basis), "failures": failure_rows}
    sweep_head = json.loads(head_file.read_text(encoding="utf-8"))
    _write(head_file, json.dumps(sweep_head | judged, indent=1))
    _write(folder / REPORT, sweep_page(head, rows, plain, failure_rows, parquet=f"{HEATMAPS}/"))
    return Sweep(points, heatmap_table, all_answers, basis, failures, folder / REPORT)


def judged_scenarios(points: DataFrame, plan: Plan) -> tuple[SweepBasis, list[Failure]]:
    """The basis of a sweep, and the first scenarios that failed, their settings in words."""
    chain = read_chain("sweeps/failures.sql", most_named=MOST_NAMED_FAILURES)
    basis, first = run_chain({"points": points}, chain, ["sweep_basis", "first_failures"])
    failures = [
        Failure(
            ", ".join(
                f"{parameter.path} = {text(row[parameter.column])}" for parameter in plan.parameters
            ),
            row["seed"],
            row["error"],
        )
        for row in first.toArrow().to_pylist()
    ]
    (counts,) = basis.toArrow().to_pylist()
    return SweepBasis(**counts), failures


def _write(path: Path, content: Any) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(content, encoding="utf-8")
    unfinished.replace(path)


# The package for workers.
#
# A task of a sweep runs the simulation, so every worker needs this project. On the local machine it
# is installed; a cluster gets it with the sweep. Its dependencies (`pyarrow`, `pydantic`,
# `structlog`, `prometheus-client`) must be installed on the workers.


_SUFFIXES = (".py", ".toml", ".css", ".typed", ".sql")
_TIME = (1980, 1, 1, 0, 0, 0)  # the same bytes whenever it is made: Spark refuses another file


def write_package(path: Path) -> None:
    """Write the Python packages of this project into a zip file that Python imports from."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("purgatory", "timer"):
            _add(archive, resources.files(package), package)


def ship_package(session: SparkSession, folder: Path) -> None:
    """Send this project to the workers of a session, from a file that is written in `folder`."""
    path = folder / "kafka-purgatory.zip"
    write_package(path)
    session.addArtifacts(str(path), pyfile=True)


def _add(archive: zipfile.ZipFile, entry: Traversable, name: str) -> None:
    if entry.is_dir():
        for child in sorted(entry.iterdir(), key=lambda item: item.name):
            if child.name != "__pycache__":
                _add(archive, child, f"{name}/{child.name}")
    elif name.endswith(_SUFFIXES):
        info = zipfile.ZipInfo(name, _TIME)
        info.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(info, entry.read_bytes())
