"""How far the jobs of a Spark session are: stages and tasks, on standard error while they run.

On a terminal, one line with a bar is kept up to date and taken away at the end. Elsewhere a plain
line comes every few seconds, and one at the end with the totals, so that a log stays readable.

Only what Spark has begun is known: it plans a query stage by stage, so the number of all tasks
grows while it runs. A thread of its own asks four times a second, which costs next to nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO, cast

from py4j.protocol import Py4JError

from purgatory.analysis.spark.connect import is_connect
from purgatory.analysis.spark.starting import end_start

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

_POLL_S = 0.25
_LINE_S = 5.0


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
def shown_progress(
    session: SparkSession, shown: bool | None = None, to: TextIO | None = None
) -> Iterator[None]:
    """Show the progress of a session's jobs during the `with` block.

    Args:
        session: a session of Spark, or of a Spark Connect server.
        shown: None shows it on a terminal only; True also elsewhere, as plain lines; False never.
        to: where to; standard error by default.
    """
    end_start()
    stream = sys.stderr if to is None else to
    terminal = stream.isatty()
    if shown is False or (shown is None and not terminal):
        yield
        return
    with _source(session) as source, _display(stream, terminal) as show:
        stopped = threading.Event()
        watcher = threading.Thread(
            target=_watch, args=(source, show, stopped), name="spark-progress", daemon=True
        )
        watcher.start()
        try:
            yield
        finally:
            stopped.set()
            watcher.join(10 * _POLL_S)


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
        return counted(list(self._stages.values()))

    def _note(self, stage: int) -> None:
        info = self._tracker.getStageInfo(stage)
        if info is not None and info.numTasks:
            done = min(info.numCompletedTasks, info.numTasks)
            if done or info.numActiveTasks or stage in self._stages:
                self._stages[stage] = (info.numTasks, done)


class ConnectSource:
    """The progress of a session on a Spark Connect server, which tells it by itself."""

    def __init__(self) -> None:
        self._stages: dict[int, tuple[int, int]] = {}

    def note(
        self,
        stages: Iterable[StageInfo] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        """Take what the server tells: the handler that a session of Spark Connect calls."""
        for stage in stages or ():
            completed = min(stage.num_completed_tasks, stage.num_tasks)
            self._stages = {**self._stages, stage.stage_id: (stage.num_tasks, completed)}
        if done:
            # Stages that never began were skipped: others had computed the same already.
            self._stages = {number: of for number, of in self._stages.items() if of[1]}

    def progress(self) -> Progress:
        """See `Source`."""
        return counted(list(self._stages.values()))


def counted(stages: Sequence[tuple[int, int]]) -> Progress:
    """The sums over stages, each given as its tasks and how many of them are done."""
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


def _watch(
    source: Source, show: Callable[[Progress, bool], None], stopped: threading.Event
) -> None:
    last = Progress()
    while True:
        ended = stopped.wait(_POLL_S)
        try:
            last = source.progress()
        except (Py4JError, OSError):
            # The session broke off; its caller tells what there is to say.
            ended = True
        show(last, ended)
        if ended:
            return


@contextmanager
def _display(stream: TextIO, terminal: bool) -> Iterator[Callable[[Progress, bool], None]]:
    if terminal:
        with _bar(stream) as show:
            yield show
    else:
        yield _lines(stream)


@contextmanager
def _bar(stream: TextIO) -> Iterator[Callable[[Progress, bool], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("Spark"), BarColumn(), TextColumn("{task.description}"))
    with Bar(*columns, TimeElapsedColumn(), console=Console(file=stream), transient=True) as bar:
        row = bar.add_task("starting", total=None)

        def show(progress: Progress, ended: bool) -> None:
            bar.update(
                row,
                description=str(progress) if progress.stages else "planning",
                completed=progress.tasks_done,
                total=progress.tasks or None,
            )

        yield show


def _lines(stream: TextIO) -> Callable[[Progress, bool], None]:
    """Show by lines: at the first task, then at most one in some seconds, and the last word."""
    from time import monotonic

    written = Progress()
    next_s = 0.0

    def show(progress: Progress, ended: bool) -> None:
        nonlocal written, next_s
        if ended or (progress != written and monotonic() >= next_s):
            print(f"Spark: {progress}", file=stream, flush=True)
            written, next_s = progress, monotonic() + _LINE_S

    return show
