"""The Spark session of an analysis: quiet, in UTC, and on loopback where that is enough.

Ground rules: a process has at most one Spark context, so one session is open at a time. The
standard error of Java goes to a file, not to the terminal; an error of Spark's names the file,
which has the stack then; it is removed when nothing failed.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import BaseServer
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home as find_spark_home
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.memory import PAGE_SIZE, heap_bytes, total_memory_bytes
from purgatory.pipeline.engines.spark.connect import (
    CONNECT,
    CONNECT_PORT,
    SESSION_SETTINGS,
    connect_session,
)
from purgatory.pipeline.engines.spark.failures import failure_text, stack_text
from purgatory.pipeline.engines.spark.java import find_java_home
from purgatory.pipeline.engines.spark.java_process import JavaProcess, java_process, no_repetitions
from purgatory.pipeline.engines.spark.job_threads import cancel_jobs_on_signal
from purgatory.pipeline.engines.spark.progress import spark_progress
from purgatory.pipeline.errors import PipelineError, SessionError
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

ROWS_PER_TASK = 250_000
"""The number of rows read per task of a shuffle."""

_MOST_PARTITIONS = 2_000
_FEW_ROWS = 100_000  # with more, interpreting takes as long as compiling
_INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_MIB = 1 << 20

_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m"
"""The optimizing compiler is off: compiling Spark takes it as much time as it saves, up to ten
million rows. Compiled code gets 48 MB then by default, which a dozen audits fill. The classes
of Spark would cause four full collections if their limit began below 256 MB.
"""

_COLLECTOR = "-XX:+UseParallelGC"
"""The parallel collector takes a tenth less processor than the default one, whose short pauses no
job needs."""

_COMPILED = "2000"
"""How many compiled classes Spark keeps: an audit has 500 or so, which are needed 600 times. With
100, the default, a sixth of them is compiled again.
"""

_OTHER_COLLECTOR = re.compile(r"-XX:\+Use\w*GC\b")
_JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS")

_TASK_THREADS = "Executor task "
"""How the names of the threads begin that run tasks."""

# The second logger is the one that Spark compares with the root before it prints on the terminal
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


@contextmanager
def spark_session(
    master: str = "local[*]",
    *,
    rows: int | None = None,
    progress: bool | None = False,
    java_options: str = "",
    settings: Mapping[str, str] | None = None,
    memory: int | None = None,
) -> Iterator[SparkSession]:
    """A Spark session that is stopped at the end of the `with` block.

    Settings of Spark come from the places where Spark looks for them: the variable
    PYSPARK_SUBMIT_ARGS and the file spark-defaults.conf; a Spark Connect server has its own.
    A signal that ends the program cancels what runs: Ctrl-C inside the block ends the block with
    KeyboardInterrupt, SIGTERM and SIGHUP with SystemExit. Java never outlives the program.

    Args:
        master: `local[N]`, `local[*]` for all cores, `spark://HOST:PORT`, `yarn`, `k8s://...`, or
            `sc://HOST:PORT` of a Spark Connect server.
        rows: about how many will be read, for the number of tasks of a shuffle; None: unknown.
        progress: show on standard error how far the jobs are; None does so on a terminal only.
        java_options, settings: more of Java's and of Spark's, where the session is started here.
        memory: the heap of the Java that is started here, in bytes; with a local master, that is
            all that Spark computes in. None: Spark's setting, else `memory.heap_bytes`.

    Raises:
        SessionError: no such master, no Java, or a session that does not start.
        SessionEndedError: Spark's Java process ended inside the block.
        PipelineError: Spark failed inside the block.
    """
    check_master(master)
    if master.startswith(CONNECT):
        if memory is not None:
            raise SessionError(
                f"--memory: the server at {master} has the memory that it was started with"
            )
        with (
            connect_session(master) as session,
            spark_errors(f"the log of the server at {master}", master),
            cancel_jobs_on_signal(session),
            spark_progress(session, progress),
        ):
            yield session
        return
    os.environ["JAVA_HOME"] = str(find_java_home(os.environ))
    java = java_process()
    required = {**_required_settings(master), **(settings or {})}
    with java.exit_errors(), no_repetitions():
        session = _start(java, required, _default_settings(master, rows), java_options, memory)
    # An error of a Java that is ending is told as its end, whatever the call was.
    with (
        spark_errors(java, master),
        java.exit_errors(),
        cancel_jobs_on_signal(session),
        stages_compiled_once(session),
        spark_progress(session, progress),
    ):
        yield session


@contextmanager
def spark_errors(log: JavaProcess | str, master: str = "local") -> Iterator[None]:
    """Turn what Spark raises inside the `with` block into one line.

    Args:
        log: where the rest is; the stack is added to the log of a Java that was started here.
        master: of the session.

    Raises:
        PipelineError: Spark failed.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        with no_repetitions():
            failure = _failure(error, log, master)
        raise PipelineError(f"Spark failed: {failure}") from error


def _failure(error: Exception, log: JavaProcess | str, master: str) -> str:
    """The message of an error, in one line; its stack goes into the log."""
    stack = stack_text(error)
    if isinstance(log, JavaProcess):
        with log.name_log().open("a", encoding="utf-8", errors="replace") as file:
            file.write(stack)
    where = log.log if isinstance(log, JavaProcess) else log
    return f"{failure_text(str(error), stack, master)} (its log: {where})"


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


def _start(
    java: JavaProcess,
    required: Mapping[str, str],
    defaults: Mapping[str, str],
    java_options: str,
    memory: int | None,
) -> SparkSession:
    """Start a session: in the Java that runs, or else in a new one.

    Args:
        java: is launched if there is none.
        required: settings that win against those of Spark's own files and arguments.
        defaults: those that don't.
        java_options: of a new Java.
        memory: the heap of a new Java; None: by its machine, where Spark's settings have none.
    """
    master = required["spark.master"]
    # The workers' Python must be this one, or it will not find the packages of this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_on_loopback(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        gateway = SparkContext._gateway or java.launch(
            _launch_settings(java, master, java_options),
            f"{(memory or heap_bytes(total_memory_bytes())) // _MIB}m",
            is_asked=memory is not None,
        )
        with java.exit_errors(), _ended_by_signals(java):
            configuration = SparkConf(_jvm=gateway.jvm)
            for name, value in {**defaults, **_folder_settings(java, master)}.items():
                configuration.setIfMissing(name, value)
            configuration.setAll(list(required.items()))
            context = SparkContext(conf=configuration, gateway=gateway)
            _keep_open_on_exit(context._accumulatorServer)
            for name in ("functions", "PythonUtils"):
                # Each expression asks for them, and Java looks through all its jars each time.
                setattr(gateway.jvm, name, getattr(gateway.jvm, name))
            return SparkSession(context)
    except (PySparkException, Py4JError, OSError) as error:
        raise SessionError(
            f"the Spark session did not start on {master}: {_failure(error, java, master)}"
        ) from error


@contextmanager
def _ended_by_signals(java: JavaProcess) -> Iterator[None]:
    """End Java if a signal breaks off the start of a context, which could not be stopped then."""
    try:
        yield
    except Exception:
        raise
    except BaseException:
        java.end()
        raise


@contextmanager
def stages_compiled_once(session: SparkSession) -> Iterator[None]:
    """Let this thread plan with the class loader of the tasks, which run in the same Java.

    Spark keeps a compiled stage by its text and the class loader of the thread that compiles it:
    with two of them, both the thread that plans a stage and its first task would compile it.
    """
    context = session.sparkContext
    jvm, jobs = context._jvm, context._jsc
    compiles = session.conf.get("spark.sql.codegen.wholeStage") == "true"
    if not compiles or not str(context.master).startswith("local") or jvm is None or jobs is None:
        yield
        return
    jobs.parallelize(jvm.java.util.Collections.singletonList(0)).count()  # starts a thread
    threads = jvm.java.lang.Thread
    before = threads.currentThread().getContextClassLoader()
    for thread in threads.getAllStackTraces().keySet():
        if thread.getName().startswith(_TASK_THREADS):
            threads.currentThread().setContextClassLoader(thread.getContextClassLoader())
            break
    yield
    # Not after a failure: Java may have ended.
    threads.currentThread().setContextClassLoader(before)


def _keep_open_on_exit(server: BaseServer) -> None:
    """Suppress the traceback of the callback server when Java ends."""
    print_traceback = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | OSError):
            print_traceback(request, client_address)

    server.handle_error = handle_error  # type: ignore[method-assign]


def _launch_settings(java: JavaProcess, master: str, java_options: str) -> SparkConf:
    """The settings of Java's start; the session's come later."""
    log4j = java.folder / "log4j2.properties"
    log4j.write_text(_LOG4J, encoding="utf-8")
    options = (
        f"{_JAVA_OPTIONS} {_collector(java_options)} {java_options} "
        f'-Dlog4j2.configurationFile={log4j.as_uri()} "-Djava.io.tmpdir={java.folder}"'
    )
    return (
        SparkConf(loadDefaults=False)
        .setMaster(master)
        .set("spark.driver.extraJavaOptions", options)
    )


def _collector(java_options: str) -> str:
    """The option of the collector; none where the user's options name one: Java refuses two."""
    home = os.environ.get("SPARK_HOME") or find_spark_home()
    folder = os.environ.get("SPARK_CONF_DIR") or Path(home, "conf")
    texts = [java_options, *(os.environ.get(name, "") for name in _JAVA_VARIABLES)]
    with suppress(OSError):
        texts.append(Path(folder, "spark-defaults.conf").read_text(errors="replace"))
    return "" if any(map(_OTHER_COLLECTOR.search, texts)) else _COLLECTOR


def _folder_settings(java: JavaProcess, master: str) -> dict[str, str]:
    """The folders of the driver; of Kubernetes, the pods of executors would have it, too."""
    spill = {} if master.startswith("k8s") else {"spark.local.dir": str(java.folder / "local")}
    return {**spill, "spark.sql.warehouse.dir": str(java.folder / "warehouse")}


def _required_settings(master: str) -> dict[str, str]:
    """The settings on which results, or the output on the terminal, depend."""
    return {
        "spark.master": master,
        "spark.app.name": "purgatory analyze",
        "spark.ui.showConsoleProgress": "false",
        # Otherwise each expression of a job asks Java six times for where in Python it is made.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        **SESSION_SETTINGS,
    }


def _default_settings(master: str, rows: int | None) -> dict[str, str]:
    """Settings in whose place users may have set others."""
    defaults = {
        "spark.ui.enabled": "false",
        "spark.buffer.pageSize": PAGE_SIZE,
        "spark.sql.codegen.cache.maxEntries": _COMPILED,
    }
    if is_on_loopback(master):
        defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    partitions = shuffle_partitions(master, rows)
    if partitions is not None:
        defaults["spark.sql.shuffle.partitions"] = str(partitions)
    return {**defaults, **compilation_settings(rows)}


def compilation_settings(rows: int | None) -> Mapping[str, str]:
    """The settings by which Spark interprets the expressions of plans for few rows.

    Otherwise it writes a Java program for each stage, and compiles it.

    Args:
        rows: that are read; None: unknown.
    """
    return _INTERPRETED if rows is not None and rows <= _FEW_ROWS else {}


def shuffle_partitions(master: str, rows: int | None) -> int | None:
    """The initial number of tasks of a shuffle; Spark joins small ones as it runs.

    Each costs some milliseconds in each stage, so that few rows get one. None: Spark's default of
    200, which is for clusters.

    Args:
        master: of the session.
        rows: that are read; None: unknown.
    """
    if rows is not None:
        return min(_MOST_PARTITIONS, 1 + rows // ROWS_PER_TASK)
    return 2 * (os.cpu_count() or 1) if master.startswith("local") else None
