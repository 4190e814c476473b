"""How far the jobs of a Spark session are: stages and tasks, on standard error while they run.

Only what Spark has begun is known: it plans a query stage by stage, so the number of all tasks
grows while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO, cast

from py4j.protocol import Py4JError

from purgatory.pipeline.engines.progress import EngineProgress, is_shown, show_progress
from purgatory.pipeline.engines.spark.connect import is_connect

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo


@dataclass(frozen=True)
class Progress:
    """Counts so far; stages that Spark skipped are in none of them."""

    stages: int = 0
    stages_done: int = 0
    tasks: int = 0
    tasks_done: int = 0

    def __str__(self) -> str:
        return (
            f"{self.stages_done:,} of {self.stages:,} stages, "
            f"{self.tasks_done:,} of {self.tasks:,} tasks done"
        )


class Source(Protocol):
    """Where progress is asked for."""

    def progress(self) -> Progress:
        """The counts so far. Called by one thread."""


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
    # Unless it is shown, nothing is asked of the session.
    with (
        _source(session) if is_shown(shown, to) else nullcontext(_NOTHING) as source,
        show_progress("Spark", lambda: _engine_progress(source), shown, to),
    ):
        yield


def _engine_progress(source: Source) -> EngineProgress | None:
    try:
        progress = source.progress()
    except (Py4JError, OSError):
        return None
    return EngineProgress(str(progress), progress.tasks_done, progress.tasks)


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

    def progress(self) -> Progress:
        """See `Source`."""
        active = set(self._tracker.getActiveJobsIds())
        new = (active | set(self._tracker.getJobIdsForGroup(None))) - self._known_jobs
        self._known_jobs |= new
        for job in self._open_jobs | new:
            info = self._tracker.getJobInfo(job)
            for stage in [] if info is None else info.stageIds:
                self._note(int(stage))
        self._open_jobs = active
        return sum_stages(list(self._stages.values()))

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

    def progress(self) -> Progress:
        """See `Source`."""
        return sum_stages(list(self._stages.values()))


_NOTHING = ConnectSource()


def sum_stages(stages: Sequence[tuple[int, int]]) -> Progress:
    """The sums over stages, each as its tasks and its completed tasks."""
    return Progress(
        stages=len(stages),
        stages_done=sum(done == tasks for tasks, done in stages),
        tasks=sum(tasks for tasks, _ in stages),
        tasks_done=sum(done for _, done in stages),
    )


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
