"""Jobs that run at the same time, and their end: all are cancelled, and left in order.

At a signal, Python's own way would break off in the middle of a call into the Java process, whose
response would then be taken for that of the next call; Spark's handler makes such a next call at
once. The handler of `cancel_on_signal` therefore lets another thread, which has a connection of its
own, cancel the jobs, and only then breaks off; the broken connection is not used any more. A Java
that doesn't respond in a moment, as when it collects garbage for minutes, is killed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException

from purgatory.pipeline.engines.spark.connect import is_connect
from purgatory.pipeline.engines.spark.java_process import end_java, no_repetitions
from purgatory.pipeline.signals import cancel_on_signal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_THREADS = 6
"""The number of queries that run at the same time: while some are planned, others compute."""

_CANCEL_EVERY_S = 0.2
_CANCEL_TIMEOUT_S = 1.0
_STOP_TIMEOUT_S = 2.0
_SERVER_TIMEOUT_S = 5.0
_CALL_TIMEOUT_S = 20.0


@contextmanager
def cancel_jobs_on_signal(session: SparkSession) -> Iterator[None]:
    """Stop a session at the end of the `with` block, and cancel its jobs at a signal.

    Raises:
        KeyboardInterrupt, SystemExit: as `cancel_on_signal`.
    """

    def cancel() -> None:
        _or_end_java(session, lambda: _cancel(session), _CANCEL_TIMEOUT_S)

    with no_repetitions(), cancel_on_signal(cancel) as signals:
        try:
            yield
        finally:
            if signals:
                _or_end_java(session, session.stop, _STOP_TIMEOUT_S)
            else:
                session.stop()


_numbers = count(1)


@contextmanager
def job_threads(session: SparkSession) -> Iterator[Callable[..., Future[Any]]]:
    """Threads in which a session runs several jobs at the same time.

    Yields:
        A function that lets one of them call another function, as `submit` of their pool.

    A failure of the `with` block cancels the other jobs. After a signal nothing is waited for: its
    handler has cancelled all jobs, and the session is stopped.
    """
    tag = f"purgatory-{next(_numbers)}"
    calls: list[Future[Any]] = []

    def call(function: Callable[..., object], *args: object) -> object:
        tag_jobs(session, tag)
        return function(*args)

    def submit(function: Callable[..., object], *args: object) -> Future[Any]:
        calls.append(pool.submit(target, function, *args))
        return calls[-1]

    inherit = (lambda: None) if is_connect(session) else _inherited_class_loader(session)
    pool = ThreadPoolExecutor(_THREADS, "spark-jobs", inherit)
    target = inheritable_thread_target(session)(call)
    try:
        yield submit
    except Exception:
        pool.shutdown(wait=False, cancel_futures=True)
        # A query that is being planned begins its job only later: it is cancelled then.
        while wait(calls, _CANCEL_EVERY_S).not_done:
            cancel_tagged_jobs(session, tag)
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _inherited_class_loader(session: SparkSession) -> Callable[[], None]:
    """A function that gives a thread this one's class loader, as Java's threads have it."""
    threads = session.sparkContext._jvm.java.lang.Thread  # type: ignore[union-attr]
    loader = threads.currentThread().getContextClassLoader()

    def inherit() -> None:
        # If Java has ended, the thread's jobs say so; here, Python would log a traceback.
        with suppress(Py4JError, OSError):
            threads.currentThread().setContextClassLoader(loader)

    return inherit


def tag_jobs(session: SparkSession, tag: str) -> None:
    """Tag the jobs of this thread from now on."""
    if is_connect(session):
        session.addTag(tag)
    else:
        # Spark's `interruptTag` finds nothing that another thread of this process runs.
        session.sparkContext.addJobTag(tag)


def cancel_tagged_jobs(session: SparkSession, tag: str) -> None:
    """Cancel the jobs with a tag, whichever threads run them."""
    if is_connect(session):
        session.interruptTag(tag)
    else:
        session.sparkContext.cancelJobsWithTag(tag)


def _cancel(session: SparkSession) -> None:
    if is_connect(session):
        session.interruptAll()
    else:
        session.sparkContext.cancelAllJobs()


def _or_end_java(session: SparkSession, call: Callable[[], object], timeout_s: float) -> None:
    """Call something of the Java of this program, and kill it if that takes longer.

    A Spark Connect server survives: it has more time to receive the cancellation.
    """
    if is_connect(session):
        run_in_thread(call, _SERVER_TIMEOUT_S)
    elif not run_in_thread(call, timeout_s):
        end_java()


def run_in_thread(call: Callable[[], object], timeout_s: float = _CALL_TIMEOUT_S) -> bool:
    """Call something in a thread of its own; errors of Spark's are of no use any more.

    Returns:
        Whether it has ended within the time.
    """

    def run() -> None:
        # AttributeError: the session was being stopped already.
        with suppress(Py4JError, PySparkException, OSError, AttributeError):
            call()

    thread = threading.Thread(target=run, name="spark-cancel", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()
