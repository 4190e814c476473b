"""The progress of a Spark session's jobs: stages and tasks, on standard error while they run.

Only what Spark has begun is known: it plans a query stage by stage, so the number of all tasks
grows while it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TextIO, cast

from py4j.protocol import Py4JError

from purgatory.pipeline.engines.progress import (
    EngineProgress,
    end_start,
    is_shown,
    show_progress,
)
from purgatory.pipeline.engines.spark.connect import is_connect

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo


class Source(Protocol):
    """A source of progress: a status tracker or a Spark Connect server."""

    def progress(self) -> EngineProgress:
        """The counts so far, without stages that Spark skipped. Called by one thread."""


@contextmanager
def spark_progress(
    session: SparkSession, shown: bool | None = None, to: TextIO | None = None
) -> Iterator[None]:
    """Show the progress of a session's jobs during the `with` block.

    Args:
        session: a session of Spark, or of a Spark Connect server.
        shown: None shows it on a terminal only; True also elsewhere, as plain lines; False never.
        to: where to; standard error by default.
    """
    if not is_shown(shown, to):  # then nothing is asked of the session
        end_start()
        yield
        return
    with _source(session) as source:

        def ask() -> EngineProgress | None:
            with suppress(Py4JError, OSError):
                return source.progress()
            return None

        with show_progress("Spark", ask, shown, to):
            yield


class StatusTrackerSource:
    """The progress of a session in this process, from Spark's own status tracker.

    A job that ended is asked for once more and then only counted: a poll takes as long as the
    jobs that run, however many there were.
    """

    def __init__(self, context: SparkContext) -> None:
        self._tracker = context.statusTracker()
        self._stages: dict[int, tuple[int, int]] = {}
        self._open_jobs: set[int] = set()
        # Jobs that ended before are not this progress's: a caller's session may be an old one.
        self._known_jobs = set(self._tracker.getJobIdsForGroup(None))
        self._known_jobs -= set(self._tracker.getActiveJobsIds())

    def progress(self) -> EngineProgress:
        """See `Source`."""
        active = set(self._tracker.getActiveJobsIds())
        new = (active | set(self._tracker.getJobIdsForGroup(None))) - self._known_jobs
        self._known_jobs |= new
        for job in self._open_jobs | new:
            info = self._tracker.getJobInfo(job)
            for stage in [] if info is None else info.stageIds:
                self._note(int(stage))
        self._open_jobs = active
        return sum_stages(self._stages.values())

    def _note(self, stage: int) -> None:
        info = self._tracker.getStageInfo(stage)
        if info is not None and info.numTasks:
            done = min(info.numCompletedTasks, info.numTasks)
            if done or info.numActiveTasks or stage in self._stages:
                self._stages[stage] = (info.numTasks, done)


class ConnectSource:
    """The progress of a session on a Spark Connect server, which the server reports."""

    def __init__(self) -> None:
        self._stages: dict[int, tuple[int, int]] = {}

    def note(
        self,
        stages: Iterable[StageInfo] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        """Handle a progress report of the server."""
        for stage in stages or ():
            completed = min(stage.num_completed_tasks, stage.num_tasks)
            self._stages = {**self._stages, stage.stage_id: (stage.num_tasks, completed)}
        if done:
            # Stages that never began were skipped: others had computed the same already.
            self._stages = {number: of for number, of in self._stages.items() if of[1]}

    def progress(self) -> EngineProgress:
        """See `Source`."""
        return sum_stages(self._stages.values())


def sum_stages(stages: Collection[tuple[int, int]]) -> EngineProgress:
    """The sums over stages, each as its tasks and its completed tasks."""
    tasks, tasks_done = (sum(counts) for counts in zip(*stages, strict=True)) if stages else (0, 0)
    stages_done = sum(done == all_tasks for all_tasks, done in stages)
    text = f"{stages_done:,} of {len(stages):,} stages, {tasks_done:,} of {tasks:,} tasks done"
    return EngineProgress(text, tasks_done, tasks)


@contextmanager
def _source(session: SparkSession) -> Iterator[Source]:
    if not is_connect(session):
        yield StatusTrackerSource(session.sparkContext)
        return
    source = ConnectSource()
    handler = cast("ProgressHandler", source.note)
    session.registerProgressHandler(handler)
    try:
        yield source
    finally:
        session.removeProgressHandler(handler)
