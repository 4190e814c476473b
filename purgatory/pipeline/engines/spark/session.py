"""The Spark session of an analysis: quiet, in UTC, and on loopback where that is enough.

Ground rules: a process has at most one Spark context, so one session is open at a time. What the
Java side writes to its standard error goes to a file, not to the terminal; the file is named in
the error when something fails, and removed when the session ends well.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from socketserver import BaseServer
from typing import Any
from unittest.mock import patch

import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.spark.class_archive import (
    archive_path,
    make_in_background,
    options_to_make,
    options_to_use,
)
from purgatory.pipeline.engines.spark.connect import CONNECT, CONNECT_PORT, connect_session
from purgatory.pipeline.engines.spark.interrupts import cancel_jobs_on_signal, no_repetitions
from purgatory.pipeline.engines.spark.java import (
    cache_folder,
    find_java_home,
    java_exit_text,
)
from purgatory.pipeline.engines.spark.progress import spark_progress
from purgatory.pipeline.engines.termination import defer_signals
from purgatory.pipeline.errors import PipelineError, SessionEndedError, SessionError
from purgatory.pipeline.jobs.expressions import FEW_ROWS
from purgatory.settings.addresses import split_host_and_port

_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(,\s*[1-9]\d*)?\])?"
    r"|spark://[^\s/]+:\d+(,[^\s/]+:\d+)*"
    r"|sc://(\[[^\s/\]]+\]|[^\s/:]+)(:\d+)?(/\S*)?"
    r"|yarn|k8s://\S+"
)
_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
_REACH_TIMEOUT_S = 5.0
_MOST_PORT = 65_535
_EXIT_TIMEOUT_S = 300.0
_ABOUT_TO_END_S = 1.0
"""How long a process may take to end after its connections broke."""

MOST_SMALL_ROWS = 500_000
"""The rows of traces up to which a job spends more on starting Spark than on looking at them."""

_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""For a Java that lives some seconds: compile quickly and never again, collect with one thread.

Without it, most of the processor time of a small analysis goes into compiling Spark itself. What is
compiled gets 48 MB if nothing else is said, which a dozen audits in one session fill.
"""

# The second logger is the one that Spark compares with the root before it says on the terminal
# that it sets a default log level.
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""

_REFUSAL = re.compile(
    r"^(?:Error: (?!Could not create the Java|A fatal exception)|Unrecognized |Invalid |Improperly "
    r"|Conflicting |Exception in thread \"main\" \S*IllegalArgumentException).*",
    re.MULTILINE,
)
"""Messages of Java and `spark-submit` on invalid arguments and settings."""


@contextmanager
def spark_session(
    master: str = "local[*]",
    *,
    small: bool = False,
    progress: bool | None = False,
    java_options: str = "",
    settings: Mapping[str, str] | None = None,
    archive_to: Path | None = None,
    memory: int | None = None,
) -> Iterator[SparkSession]:
    """A Spark session that is stopped at the end of the `with` block.

    Memory and other settings of Spark come from the places where Spark looks for them: the
    variable PYSPARK_SUBMIT_ARGS and the file spark-defaults.conf; a Spark Connect server has its
    own. Ctrl-C inside the block cancels what runs and ends the block with KeyboardInterrupt.

    Args:
        master: `local[N]`, `local[*]` for all cores, `spark://HOST:PORT`, `yarn`, `k8s://...`, or
            `sc://HOST:PORT` of a Spark Connect server.
        small: set up for a quick start rather than for much data; counts with a local master only.
        progress: show on standard error how far the jobs are; None does so on a terminal only.
        java_options, settings: more of Java's and of Spark's, where the session is started here.
        archive_to: the file in which Java, when `end_java` ends it, leaves the classes that it
            used; it uses no archive then.
        memory: the heap of the Java that is started here, in bytes; with a local master, that is
            all that Spark computes in.

    Raises:
        SessionError: no such master, no Java, or a session that does not start.
        SessionEndedError: Spark's Java process ended inside the block.
        PipelineError: Spark failed inside the block.
    """
    check_master(master)
    if master.startswith(CONNECT) and memory is not None:
        raise SessionError(
            f"--memory: the server at {master} has the memory that it was started with"
        )
    if master.startswith(CONNECT):
        with (
            connect_session(master) as session,
            cancel_jobs_on_signal(session),
            spark_errors(f"the log of the server at {master}"),
            spark_progress(session, progress),
        ):
            yield session
        return
    folder = Path(tempfile.mkdtemp(prefix="purgatory-spark-"))
    log = folder / "spark.log"
    with _temporary_log_folder(folder):
        java_home = find_java_home(os.environ)
        os.environ["JAVA_HOME"] = str(java_home)
        archive = archive_path(java_home, os.environ)
        archive_options = (
            options_to_use(archive) if archive_to is None else options_to_make(archive_to)
        )
        configuration = _configuration(master, folder, small, f"{archive_options} {java_options}")
        if memory is not None:
            configuration.set("spark.driver.memory", f"{memory >> 20}m")
        configuration.set("spark.sql.warehouse.dir", str(folder / "warehouse"))
        with no_repetitions():
            session = _start(configuration.setAll(list((settings or {}).items())), log)
        if archive_to is None:
            make_in_background(archive)
        with (
            _java_exit_errors(_java(), log),
            cancel_jobs_on_signal(session),
            spark_errors(log),
            spark_progress(session, progress),
        ):
            yield session


def end_java() -> None:
    """End the Java that this process started, and wait for it: no session must be open.

    Raises:
        SessionEndedError: it ended otherwise, as when it was killed.
        subprocess.TimeoutExpired: it takes more than five minutes.
    """
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    process = gateway.proc
    with suppress(Py4JError, OSError):  # it is gone already
        gateway.shutdown()
        process.stdin.close()  # which it waits for
    if status := process.wait(_EXIT_TIMEOUT_S):
        raise SessionEndedError(f"Spark's Java process {java_exit_text(status)}")


def _java() -> list[subprocess.Popen[bytes]]:
    """The Java process that this process started, if it did."""
    process = SparkContext._gateway.proc if SparkContext._gateway is not None else None
    return [] if process is None else [process]


@contextmanager
def _java_exit_errors(started: Sequence[subprocess.Popen[bytes]], log: Path) -> Iterator[None]:
    """Turn any error after the end of the Java process into one line.

    Each call into it fails then in its own way, those that stop the session too.

    Args:
        started: the process, once it is started; empty as long as there is none.
        log: what it writes goes there.
    """
    try:
        yield
    except Exception as error:
        status = _status_at_end(started[-1], error) if started else None
        if status is None:
            raise
        # Remains of the session must not be in the way of the next one.
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
        refusal = _REFUSAL.search(log.read_text(errors="replace")) if status == 1 else None
        if refusal is not None:
            raise SessionError(
                f"Spark's Java refused to start: {refusal[0]} (its log: {log})"
            ) from error
        raise SessionEndedError(
            f"Spark's Java process {java_exit_text(status)} (its log: {log})"
        ) from error


def _status_at_end(process: subprocess.Popen[bytes], error: Exception) -> int | None:
    """The status of a process that ended, or whose connections broke as it does; else None."""
    # While it starts, a class that the bridge can't ask for any more seems to be a package of it.
    if isinstance(error, Py4JError | OSError | TypeError | AttributeError):
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ABOUT_TO_END_S)
    process.poll()
    return process.returncode


@contextmanager
def spark_errors(log: Path | str) -> Iterator[None]:
    """Turn what Spark raises inside the `with` block into one line.

    Args:
        log: the file that has the rest.

    Raises:
        PipelineError: Spark failed.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise PipelineError(f"Spark failed: {_reason(error)} (its log: {log})") from error


@contextmanager
def _temporary_log_folder(folder: Path) -> Iterator[None]:
    """Remove the folder with the log, but not when an error has just named it."""
    try:
        yield
    except PipelineError as error:
        if str(folder) not in str(error):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _reason(error: Exception) -> str:
    """The most informative line of an error: the first with a Java exception, or the first.

    That a thread waited for one which failed says nothing.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    messages = (line.removeprefix("Caused by: ") for line in lines if "awaitResult" not in line)
    exceptions = (line for line in messages if re.match(r"[:\s]*[\w.$]+(Exception|Error):", line))
    return next(exceptions, lines[0]).lstrip(": ")


def check_master(master: str) -> None:
    """Check that Spark knows a master, and that it is reachable.

    Spark itself would try for a minute before it gave up. Takes at most 5 s per address.

    Raises:
        SessionError: saying which.
    """
    if _MASTER.fullmatch(master) is None:
        raise SessionError(
            f"{master!r} is no Spark master: give local[*], local[N] with N threads, "
            "spark://HOST:PORT, or sc://HOST:PORT of a Spark Connect server"
        )
    addresses = _addresses(master)
    if addresses and not any(_answers(host, port) for host, port in addresses):
        what = "Spark Connect server" if master.startswith(CONNECT) else "Spark master"
        raise SessionError(
            f"nothing answers at {master}: start a {what} there, or leave out --master to run on "
            "this machine"
        )


def is_on_loopback(master: str) -> bool:
    """Whether all of a cluster with this master can be reached through the loopback address."""
    addresses = _addresses(master)
    return master.startswith("local") or (
        bool(addresses) and all(host in _LOOPBACK_HOSTS for host, _ in addresses)
    )


def _addresses(master: str) -> list[tuple[str, int]]:
    if master.startswith(CONNECT):
        address = master.removeprefix(CONNECT).partition("/")[0]
        host, port = split_host_and_port(address, str(CONNECT_PORT))
        return [(host, int(port))]
    if not master.startswith("spark://"):
        return []
    pairs = map(split_host_and_port, master.removeprefix("spark://").split(","))
    return [(host, int(port)) for host, port in pairs]


def _answers(host: str, port: int) -> bool:
    # The C library would take a larger number for the port that is left of it in 16 bits.
    if port > _MOST_PORT:
        return False
    try:
        with socket.create_connection((host, port), timeout=_REACH_TIMEOUT_S):
            return True
    except OSError:
        return False


def _start(configuration: SparkConf, log: Path) -> SparkSession:
    _choose_python(str(configuration.get("spark.master")))
    try:
        gateway = SparkContext._gateway or _launch(configuration, log)
        with _java_exit_errors([gateway.proc] if gateway.proc else [], log):
            context = SparkContext(conf=configuration, gateway=gateway)
            _keep_open_on_exit(context._accumulatorServer)
            for name in ("functions", "PythonUtils"):
                # Each expression asks for them, and Java looks through all its jars each time.
                setattr(gateway.jvm, name, getattr(gateway.jvm, name))
            return SparkSession(context)
    except (PySparkException, Py4JError, OSError) as error:
        raise SessionError(
            f"the Spark session did not start on {configuration.get('spark.master')}: "
            f"{_reason(error)} (its log: {log})"
        ) from error


def _launch(configuration: SparkConf, log: Path) -> JavaGateway:
    """Start Java, through PySpark, which keeps to itself the process of a start that fails."""
    started: list[subprocess.Popen[bytes]] = []

    def submit(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        with defer_signals():
            started.append(_SparkSubmit(*arguments, **options))
        return started[0]

    try:
        with (
            log.open("ab") as output,
            patch.object(java_gateway, "Popen", submit),
            _java_exit_errors(started, log),
        ):
            return java_gateway.launch_gateway(  # type: ignore[no-untyped-call]
                configuration, popen_kwargs={"stdout": output, "stderr": output}
            )
    except BaseException:
        # PySpark has removed the folder where Java tells its port, and Java would wait for ever.
        for process in started:
            process.kill()
            process.wait()
        raise


class _SparkSubmit(subprocess.Popen[bytes]):
    def poll(self) -> int | None:
        # PySpark would wait for ever for one that ended with status 0.
        return super().poll() if self.returncode != 0 else 256


def _choose_python(master: str) -> None:
    """The workers' Python must be this one, or it will not find the packages of this one."""
    ours = worker_python(os.environ)
    if os.environ.get("PYSPARK_PYTHON", ours) in (ours, sys.executable):
        os.environ["PYSPARK_PYTHON"] = ours if master.startswith("local") else sys.executable


def _keep_open_on_exit(server: BaseServer) -> None:
    """Suppress the traceback of the callback server when Java ends."""
    tell = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | OSError):
            tell(request, client_address)

    server.handle_error = handle_error  # type: ignore[method-assign]


def _configuration(master: str, folder: Path, small: bool, java_options: str) -> SparkConf:
    log4j = folder / "log4j2.properties"
    log4j.write_text(_LOG4J, encoding="utf-8")
    if is_on_loopback(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    java_options += f" -Dlog4j2.configurationFile={log4j.as_uri()}"
    if small and master.startswith("local"):
        java_options += f" {_QUICK_START}"
    configuration = SparkConf().setMaster(master).setAll(list(_settings(master, small)))
    return configuration.set("spark.driver.extraJavaOptions", java_options.strip())


def _settings(master: str, small: bool) -> Iterator[tuple[str, str]]:
    yield "spark.app.name", "purgatory analyze"
    yield "spark.sql.session.timeZone", "UTC"
    # Otherwise a file with columns of one name but for the case can't be read at all.
    yield "spark.sql.caseSensitive", "true"
    yield "spark.sql.parquet.compression.codec", "zstd"
    # Otherwise each expression of a job asks Java six times for where in Python it is made.
    yield "spark.python.sql.dataFrameDebugging.enabled", "false"
    yield "spark.ui.enabled", "false"
    yield "spark.ui.showConsoleProgress", "false"
    if is_on_loopback(master):
        yield "spark.driver.host", "127.0.0.1"
        yield "spark.driver.bindAddress", "127.0.0.1"
    if master.startswith("local"):
        # The default of 200 tasks is for clusters; here each costs more than its work.
        if small:
            yield FEW_ROWS, "true"
            # A long plan derives more and more conditions, which spare few rows nothing.
            yield "spark.sql.constraintPropagation.enabled", "false"
            # Planning anew after each stage, and a job for each, takes longer than what it saves.
            yield "spark.sql.adaptive.enabled", "false"
            # With one task to a stage, a stage has dozens of aggregations, and each takes a page
            # before its first row: 16 MB, if nothing else is said, of a task's 200.
            yield "spark.buffer.pageSize", "1m"
        yield "spark.sql.shuffle.partitions", "1" if small else str(2 * (os.cpu_count() or 1))


# The Python that runs Spark's workers on this machine: this one, with its own PySpark.
#
# Spark has its workers look for PySpark in zip files first, and Python compiles what it takes from
# a zip file anew in each process: six tenths of a second, in each of the dozen that a query starts.
# The PySpark that is installed is the same, and compiled.


_SCRIPT = """\
#!/bin/sh
PYTHONPATH=${{PYTHONPATH#*/pyspark.zip:}}
PYTHONPATH=${{PYTHONPATH#*-src.zip:}}
export PYTHONPATH
exec {python} "$@"
"""


def worker_python(environment: Mapping[str, str]) -> str:
    """Return the program that workers on this machine are started by.

    It is made once, and then found again; where it can't be made, or PySpark isn't where a worker
    would find it, it is this Python itself.

    Args:
        environment: variables as in `os.environ`; XDG_CACHE_HOME and PYTHONPATH are read.
    """
    if not _has_pyspark(environment):
        return sys.executable
    text = _SCRIPT.format(python=shlex.quote(sys.executable))
    program = cache_folder(environment) / f"python-{sha256(text.encode()).hexdigest()[:16]}"
    if not os.access(program, os.X_OK):
        with suppress(OSError):
            _make(program, text)
    return str(program) if os.access(program, os.X_OK) else sys.executable


def _has_pyspark(environment: Mapping[str, str]) -> bool:
    """Whether a new process of this Python finds PySpark without PYTHONPATH."""
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    paths += [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    folder = os.path.realpath(Path(pyspark.__file__).parents[1])
    return folder in map(os.path.realpath, filter(None, paths))


def _make(program: Path, text: str) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    # Another process may do the same now: it is there whole, or not at all.
    with tempfile.TemporaryDirectory(prefix=".python-", dir=program.parent) as folder:
        made = Path(folder) / program.name
        made.write_text(text, encoding="utf-8")
        made.chmod(0o755)
        made.replace(program)
