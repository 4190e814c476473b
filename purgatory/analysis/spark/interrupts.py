"""Ctrl-C during a job of Spark: the job is cancelled, and what waited for it is left in order.

Python's own way would break off in the middle of a call into the Java process, whose answer would
then be taken for that of the next call; Spark's handler makes such a next call at once. So the
handler here lets another thread, which has a connection of its own, cancel the jobs, and only then
breaks off; nothing is asked over the broken connection any more.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from purgatory.analysis.spark.connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CANCEL_TIMEOUT_S = 20.0
_RAISED_AS_WELL = (
    "KeyboardInterrupt while sending command.",
    "Exception while sending command.",
    "Exception occurred while shutting down connection",
)
_LOGGED_BY = (None, "py4j.clientserver")


@contextmanager
def stopped_at_the_end(session: SparkSession) -> Iterator[None]:
    """Stop a session at the end of the `with` block, and cancel its jobs at an interrupt.

    The interrupt ends the block with KeyboardInterrupt, whatever else was raised on the way out.
    A second one has the effect that it had before the block. Outside of the main thread, where
    Python lets nobody handle signals, the session is stopped nevertheless.
    """
    interrupted = threading.Event()
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)

    def handle(_number: int, _frame: FrameType | None) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        apart(lambda: _cancel(session))
        raise KeyboardInterrupt

    if main:
        signal.signal(signal.SIGINT, handle)
    try:
        with no_repetitions():
            yield
    except BaseException:
        if interrupted.is_set():
            # What a cancelled job raises while the block is left says nothing new.
            raise KeyboardInterrupt from None
        raise
    finally:
        if interrupted.is_set():
            apart(session.stop)
        else:
            session.stop()
        if main:
            signal.signal(signal.SIGINT, before or signal.default_int_handler)


@contextmanager
def no_repetitions() -> Iterator[None]:
    """Keep back the tracebacks that the bridge to Java logs of what it raises as well.

    They come at an interrupt, and when Java ends in the middle of a call.
    """
    # A filter sees what is logged by its very logger, not what comes up to it from others.
    loggers = [logging.getLogger(name) for name in _LOGGED_BY]
    for logger in loggers:
        logger.addFilter(_is_no_repetition)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_no_repetition)


def _is_no_repetition(record: logging.LogRecord) -> bool:
    return record.msg not in _RAISED_AS_WELL


def _cancel(session: SparkSession) -> None:
    if is_connect(session):
        session.interruptAll()
    else:
        session.sparkContext.cancelAllJobs()


def apart(call: Callable[[], object]) -> None:
    """Call something in a thread of its own; what Spark raises is of no use to anybody any more."""

    def run() -> None:
        # AttributeError: the session was being stopped already.
        with suppress(Py4JError, PySparkException, OSError, AttributeError):
            call()

    thread = threading.Thread(target=run, name="spark-cancel", daemon=True)
    thread.start()
    thread.join(_CANCEL_TIMEOUT_S)
