"""The Java process of this program's sessions: its start, its files, and its end.

A program has at most one, which its sessions use one after the other. Its log, what Spark spills
and what Java unpacks lie in one folder. Both end with the program, however that ends: here when
Python exits, and by another process (`java_watch`) when Python was killed.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.spark import java_watch
from purgatory.pipeline.engines.spark.java import java_exit_text
from purgatory.pipeline.errors import SessionEndedError, SessionError
from purgatory.pipeline.signals import defer_signals

_LOCAL_DIRS = "SPARK_LOCAL_DIRS"
_RAISED_AS_WELL = (
    "KeyboardInterrupt while sending command.",
    "Exception while sending command.",
    "Exception occurred while shutting down connection",
)
_LOGGED_BY = (None, "py4j.clientserver")
_ABOUT_TO_END_S = 1.0
_ENDING_S = 10.0
"""The longest time between a broken connection of a process and its end."""

_REFUSAL = re.compile(
    r"^(?:Error: (?!Could not create the Java|A fatal exception)|Unrecognized |Invalid |Improperly "
    r"|Conflicting |Exception in thread \"main\" \S*IllegalArgumentException).*",
    re.MULTILINE,
)
"""Messages of Java and `spark-submit` on invalid arguments and settings."""


@dataclass
class JavaProcess:
    """A Java that this program started, or found: then it has no process here, and is not ended.

    Attributes:
        folder: for its log, and for what it writes besides.
        process: it.
        spills: folders for what it spills, where the variable SPARK_LOCAL_DIRS names their parents.
        is_log_named: whether an error has named the log, which is kept then.
    """

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    spills: list[str] = field(default_factory=list)
    is_log_named: bool = False
    _owner: int = field(default_factory=os.getpid)
    _watch: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The file of its standard output and error."""
        return self.folder / "spark.log"

    def launch(
        self, configuration: SparkConf, driver_memory: str, *, is_asked: bool
    ) -> JavaGateway:
        """Start Java through PySpark, which keeps to itself the process of a start that fails.

        Args:
            configuration: what Java must know as it starts.
            driver_memory: the heap, in Spark's words.
            is_asked: whether it wins against all of Spark's own settings.
        """

        def submit(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
            if is_asked:  # of several, Spark takes the last one
                command = [*command[:-1], "--driver-memory", driver_memory, command[-1]]
            # Spark falls back to this variable when neither its files nor its arguments set a heap.
            options["env"].setdefault("SPARK_DRIVER_MEMORY", driver_memory)
            self._make_spills(options["env"])
            with defer_signals():
                self.process = _SparkSubmit(command, **options)
                self._start_watch()
            return self.process

        try:
            with (
                self.log.open("ab") as output,
                patch.object(java_gateway, "Popen", submit),
                self.exit_errors(),
            ):
                gateway: JavaGateway = java_gateway.launch_gateway(  # type: ignore[no-untyped-call]
                    configuration, popen_kwargs={"stdout": output, "stderr": output}
                )
                return gateway
        except BaseException:
            # PySpark has removed the folder of Java's port file: Java would wait for ever.
            self.end()
            raise

    def _make_spills(self, environment: dict[str, str]) -> None:
        parents = environment.get(_LOCAL_DIRS, "")
        for parent in filter(None, parents.split(",")):
            with suppress(OSError):  # Spark reports that it can't write there
                Path(parent).mkdir(parents=True, exist_ok=True)
                self.spills.append(tempfile.mkdtemp(prefix="purgatory-spark-", dir=parent))
        if self.spills:
            environment[_LOCAL_DIRS] = ",".join(self.spills)

    def _start_watch(self) -> None:
        if self.process is None or not hasattr(os, "pidfd_open"):
            return
        numbers = (str(self._owner), str(self.process.pid))
        with suppress(OSError):  # all but a kill of this program goes without it
            self._watch = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", java_watch.__file__),
                    *(*numbers, str(self.folder), *self.spills),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # it outlives its group, which may be killed as a whole
            )

    def name_log(self) -> Path:
        """The log, for an error that names it."""
        self.is_log_named = True
        return self.log

    @contextmanager
    def exit_errors(self) -> Iterator[None]:
        """Turn any error after the end of the process into one line.

        Each call into it fails then in its own way, those that stop the session too.
        """
        try:
            yield
        except Exception as error:
            with no_repetitions():  # a thread of the bridge still talks to Java while that ends
                status = self._status_at_end(error)
            if status is None:
                raise
            log = self.name_log()
            refusal = _REFUSAL.search(log.read_text(errors="replace")) if status == 1 else None
            self.end()
            if refusal is not None:
                raise SessionError(
                    f"Spark's Java refused to start: {refusal[0]} (its log: {log})"
                ) from error
            raise SessionEndedError(
                f"Spark's Java process {java_exit_text(status)} (its log: {log})"
            ) from error

    def _status_at_end(self, error: Exception) -> int | None:
        """The status of a process that ended, or whose connections broke as it does; else None."""
        process = self.process or getattr(SparkContext._gateway, "proc", None)
        if process is None:
            return None
        # While it starts, a class that the bridge can't ask for any more seems to be a package.
        # A connection that broke off in a call, or the lack of a class that was there, is that of
        # a Java that is ending, however slowly.
        is_broken_off = (
            isinstance(error, Py4JNetworkError)
            or isinstance(error.__cause__, Py4JNetworkError)
            or (isinstance(error, Py4JError) and "does not exist in the JVM" in str(error))
        )
        if is_broken_off or isinstance(error, Py4JError | OSError | TypeError | AttributeError):
            with suppress(subprocess.TimeoutExpired):
                process.wait(_ENDING_S if is_broken_off else _ABOUT_TO_END_S)
        process.poll()
        if process.returncode is None:
            return None
        self.process = process
        return int(process.returncode)

    def end(self) -> None:
        """Kill it, and remove its files; sessions that are still open end with it."""
        if os.getpid() != self._owner:
            return  # a fork of the program
        if self in _processes:
            _processes.remove(self)
        if self.process is not None and SparkContext._gateway is not None:
            # A thread of the bridge still notifies Java of objects that are gone.
            SparkContext._gateway._gateway_client.is_connected = False
            for name in _LOGGED_BY:
                logging.getLogger(name).addFilter(_is_no_repetition)
            # Remains of a session must not be in the way of the next one.
            SparkContext._gateway = SparkContext._jvm = None
            SparkContext._active_spark_context = None
            SparkSession._instantiatedSession = None
        for process in (self.process, self._watch):
            if process is not None:
                process.kill()
                process.wait()
                if process.stdin is not None:
                    with suppress(OSError):
                        process.stdin.close()
        self.process = self._watch = None
        for spill in self.spills:
            shutil.rmtree(spill, ignore_errors=True)
        if not self.is_log_named:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for path in self.folder.iterdir():
            if path != self.log:
                path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)


class _SparkSubmit(subprocess.Popen[bytes]):
    def poll(self) -> int | None:
        # PySpark would wait for ever for one that ended with status 0.
        return super().poll() if self.returncode != 0 else 256


@contextmanager
def no_repetitions() -> Iterator[None]:
    """Keep back the tracebacks and warnings of the bridge to Java on what it raises as well.

    They come at an interrupt, and when Java ends in the middle of a call.
    """
    # A filter sees what is logged by its very logger, not what comes up to it from others.
    loggers = [logging.getLogger(name) for name in _LOGGED_BY]
    loggers = [logger for logger in loggers if _is_no_repetition not in logger.filters]
    for logger in loggers:
        logger.addFilter(_is_no_repetition)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark", RuntimeWarning)
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_no_repetition)


def _is_no_repetition(record: logging.LogRecord) -> bool:
    return record.msg not in _RAISED_AS_WELL


_processes: list[JavaProcess] = []
"""The Java of this program, if it has one."""


def java_process() -> JavaProcess:
    """The Java of this program: the one that runs, or one that is to be launched."""
    if not _processes or (_processes[0].process is not None and SparkContext._gateway is None):
        end_java()
        _processes.append(JavaProcess(Path(tempfile.mkdtemp(prefix="purgatory-spark-"))))
    return _processes[0]


@atexit.register
def end_java() -> None:
    """End the Java of this program, if it has one: no session must be open."""
    for java in list(_processes):
        java.end()
