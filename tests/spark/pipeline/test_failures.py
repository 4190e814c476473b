"""An error of Spark's as one line: the exhausted resource, its place, and the setting."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory.pipeline.engines.spark.failures import failure_text

_CLUSTER = "spark://10.0.0.1:7077"
_LOST = (
    "Job aborted due to stage failure: Task 3 in stage 7.0 failed 4 times, most recent failure: "
    "Lost task 3.3 in stage 7.0 (TID 61) (10.0.0.7 executor 5): "
)
_HEAP = "java.lang.OutOfMemoryError: Java heap space"


@pytest.mark.parametrize(
    ("message", "master", "told"),
    [
        (_HEAP, "local[2]", "Java (driver and executor in one) ran out of heap: set --memory high"),
        (_HEAP, _CLUSTER, "the driver ran out of heap: set --memory higher"),
        (
            _LOST + _HEAP,
            _CLUSTER,
            "executor 5 on 10.0.0.7 ran out of heap: set spark.executor.memory higher",
        ),
        (
            _LOST + "ExecutorLostFailure (executor 5 exited caused by one of the running tasks) "
            "Reason: Command exited with code 52",
            _CLUSTER,
            "executor 5 on 10.0.0.7 ran out of heap: set spark.executor.memory higher",
        ),
        (
            _LOST + "org.apache.spark.memory.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY] "
            "Unable to acquire 65536 bytes of memory, got 0.",
            _CLUSTER,
            "executor 5 on 10.0.0.7 ran out of heap: set spark.executor.memory higher",
        ),
        (
            "java.lang.OutOfMemoryError: Not enough memory to build and broadcast the table",
            "yarn",
            "the driver ran out of heap: set --memory higher",
        ),
        (
            "ExecutorLostFailure (executor 2 exited caused by one of the running tasks) Reason: "
            "Container killed by YARN for exceeding physical memory limits. 2.1 GB of 2 GB used.",
            "yarn",
            "executor 2 took more memory than its container or machine has: set "
            "spark.executor.memoryOverhead higher",
        ),
        (
            "ExecutorLostFailure (executor 2 exited caused by one of the running tasks) Reason: "
            "The executor with id 2 exited with exit code 137(SIGKILL, possible container OOM).",
            "k8s://https://h:6443",
            "executor 2 took more memory than its container",
        ),
        (
            _LOST + "java.lang.OutOfMemoryError: Cannot reserve 67108864 bytes of direct buffer",
            _CLUSTER,
            "executor 5 on 10.0.0.7 ran out of buffers, which may be as large as the heap",
        ),
        (
            "java.lang.OutOfMemoryError: unable to create native thread",
            "local[2]",
            "Java (driver and executor in one) got no more threads: raise the limit",
        ),
        (
            _LOST + "java.io.IOException: No space left on device",
            _CLUSTER,
            "executor 5 on 10.0.0.7 ran out of disk; what does not fit memory goes to TMPDIR",
        ),
        (
            "org.apache.spark.SparkException: Job aborted due to stage failure: Total size of "
            "serialized results of 9 tasks (1.1 GiB) is bigger than spark.driver.maxResultSize",
            _CLUSTER,
            "the driver got more rows than it may hold: set spark.driver.maxResultSize higher",
        ),
        ("[DIVIDE_BY_ZERO] Division by zero.\n== SQL ==", _CLUSTER, "[DIVIDE_BY_ZERO] Division"),
    ],
)
def test_spark_failure_names_the_resource_and_its_setting(
    message: str, master: str, told: str
) -> None:
    line = failure_text(message, f"Traceback\n{message}\n\tat org.apache.spark.X", master)
    assert line.startswith(told)
    assert "\n" not in line
    assert message.partition("\n")[0].partition("\tat")[0][-40:] in line, "Spark's own words"


def test_failure_line_is_the_most_informative_one() -> None:
    message = (
        "An error occurred while calling o37.collect.\n"
        ": org.apache.spark.SparkException: Exception thrown in awaitResult: \n"
        "\tat org.apache.spark.util\n"
        "Caused by: java.io.EOFException: Reached the end of stream"
    )
    assert failure_text(message, message, "yarn") == (
        "java.io.EOFException: Reached the end of stream"
    )


_FILLS_THE_HEAP = """
import sys, threading, time, click
from py4j.protocol import Py4JError
from purgatory.cli.exit_status import exit_on_error
from purgatory.pipeline.engines.spark.session import spark_session

try:
    with exit_on_error("test"), spark_session("local[1]", memory=512 << 20) as session:
        if sys.argv[1] == "driver":
            session._jvm.java.util.Collections.nCopies(1 << 28, "x").toArray()
        if sys.argv[1] == "class":
            halt = session._jvm.java.lang.Runtime.getRuntime().halt
            threading.Thread(target=lambda: (time.sleep(2), halt(52)), daemon=True).start()
            raise Py4JError("org.apache.spark.sql.classic.SparkSession does not exist in the JVM")
        long = "(select collect_list(repeat(cast(id as string), 1 << 27)) as long from range(9))"
        session.sql(f"select count(*) from {long} where size(long) > 0").show()
except click.exceptions.Exit as ended:
    sys.exit(ended.exit_code)
"""


@pytest.mark.spark
@pytest.mark.parametrize("where", [pytest.param("driver", marks=pytest.mark.exhaustive), "task"])
def test_full_heap_is_reported_and_the_log_has_the_stack(where: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _FILLS_THE_HEAP, where],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    # A task's error also ends Java: which of the two Python sees first is a matter of milliseconds.
    assert ran.returncode in ((2,) if where == "driver" else (2, 75)), ran.stderr
    assert "ran out of heap: set --memory higher" in ran.stderr
    assert ran.stderr.count("\n") == 1, ran.stderr
    log = re.search(r"its log: (\S+)\)", ran.stderr)
    assert log is not None
    text = Path(log[1]).read_text()
    assert "java.lang.OutOfMemoryError: Java heap space\n\tat " in text
    folder = Path(log[1]).parent
    assert [path.name for path in folder.iterdir()] == ["spark.log"]


@pytest.mark.spark
@pytest.mark.exhaustive  # by day Java is killed at calls of its start
def test_class_that_an_ending_java_lacks_is_reported_as_its_end() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FILLS_THE_HEAP, "class"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 75, ran.stderr
    assert "Spark's Java process ran out of heap: set --memory higher" in ran.stderr
