"""The session's settings, and the errors of invalid masters."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.memory import heap_bytes
from purgatory.pipeline.engines.spark.connect import connect_session
from purgatory.pipeline.engines.spark.java_process import JavaProcess, no_repetitions
from purgatory.pipeline.engines.spark.job_threads import _inherited_class_loader, job_threads
from purgatory.pipeline.engines.spark.session import (
    check_master,
    compilation_settings,
    is_on_loopback,
    shuffle_partitions,
    spark_errors,
    spark_session,
    stages_compiled_once,
)
from purgatory.pipeline.errors import PipelineError, SessionEndedError, SessionError

_GIB = 1 << 30


@pytest.mark.spark
def test_session_has_its_required_settings(spark: SparkSession) -> None:
    context = spark.sparkContext
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert spark.sql('select "a" from values (1) as t(a)').collect() == [(1,)]
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert context.uiWebUrl is None
    assert "-XX:ReservedCodeCacheSize=240m" in str(spark.conf.get("spark.driver.extraJavaOptions"))
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


@pytest.mark.spark
def test_threads_that_plan_share_compiled_stages_with_tasks(spark: SparkSession) -> None:
    context, jvm = spark.sparkContext, spark.sparkContext._jvm
    assert jvm is not None
    threads, identity = jvm.java.lang.Thread, jvm.java.lang.System.identityHashCode

    def loader() -> int:
        return int(identity(threads.currentThread().getContextClassLoader()))

    before = loader()
    context._jsc.parallelize(jvm.java.util.Collections.singletonList(0)).count()
    of_tasks = {
        identity(thread.getContextClassLoader())
        for thread in threads.getAllStackTraces().keySet()
        if thread.getName().startswith("Executor task ")
    }
    assert of_tasks != {before}
    with stages_compiled_once(spark):
        assert loader() == before, "plans for few rows are not compiled"
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    try:
        with stages_compiled_once(spark), job_threads(spark) as submit:
            assert {loader()} == {submit(loader).result()} == of_tasks
        assert loader() == before
    finally:
        spark.conf.set("spark.sql.codegen.wholeStage", "false")


def test_tasks_of_a_shuffle_follow_the_rows() -> None:
    cluster = "spark://127.0.0.1:7077"
    for master in (cluster, "local[2]"):
        found = [shuffle_partitions(master, rows) for rows in (0, 200_000, 600_000, 20_000_000)]
        assert found == [1, 1, 3, 81]
        assert shuffle_partitions(master, 10**12) == 2_000
    assert shuffle_partitions("local[2]", None) == 2 * (os.cpu_count() or 1)
    assert shuffle_partitions(cluster, None) is None, "Spark's default is for clusters"


def test_plans_for_few_rows_are_not_compiled() -> None:
    for rows in (0, 100_000):
        assert compilation_settings(rows)["spark.sql.codegen.wholeStage"] == "false"
    assert compilation_settings(100_001) == compilation_settings(None) == {}


@pytest.mark.parametrize(
    ("memory", "heap"),
    [(1, 0.5), (2, 1.0), (3, 1.0), (8, 2.0), (16, 4.0), (24, 4.0), (512, 4.0)],
)
def test_the_heap_follows_the_memory(memory: int, heap: float) -> None:
    assert heap_bytes(memory * _GIB) == heap * _GIB


@pytest.mark.spark
def test_spark_error_is_one_line_and_its_log_has_the_stack(
    spark: SparkSession, tmp_path: Path
) -> None:
    java = JavaProcess(tmp_path)
    with pytest.raises(PipelineError) as caught, spark_errors(java):
        spark.sql("select raise_error('out of cheese')").collect()
    message = str(caught.value)
    assert "out of cheese" in message
    assert str(java.log) in message
    assert "\n" not in message
    stack = java.log.read_text()
    assert ".collect()" in stack, "Python's"
    assert "at org.apache.spark.sql." in stack, "Java's"


def test_end_of_java_is_told_once_whatever_the_bridge_logs_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)  # not that of the session of other tests

    class Ending(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None:  # not yet killed
                logging.error("Exception while sending command.")
            return super().wait(timeout)

    java = JavaProcess(tmp_path, Ending([sys.executable, "-c", "raise SystemExit(52)"]))
    java.log.touch()
    with pytest.raises(SessionEndedError, match="ran out of heap"), java.exit_errors():
        raise Py4JNetworkError("Answer from Java side is empty")
    with no_repetitions():
        with no_repetitions():
            pass
        logging.error("Exception while sending command.")
    assert caplog.messages == []


@pytest.mark.parametrize(
    "master", ["", "local[0]", "local[two]", "spark://host", "laptop", "yarn!", "sc://", "sc://a:b"]
)
def test_unknown_master_is_refused(master: str) -> None:
    with pytest.raises(SessionError, match=r"is no Spark master: give local\[\*\]"):
        check_master(master)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[*, 3]", "yarn"])
def test_masters_without_an_address_are_not_contacted(master: str) -> None:
    check_master(master)


def test_unreachable_master_is_reported_before_spark_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_master(f"spark://127.0.0.1:{port}")
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
        with pytest.raises(SessionError, match="nothing answers at"):
            check_master(f"spark://127.0.0.1:{port + 65_536}")  # the same in 16 bits
    with pytest.raises(SessionError, match=f"nothing answers at spark://127.0.0.1:{port}"):
        check_master(f"spark://127.0.0.1:{port}")


def test_a_connect_server_has_a_port_of_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_master(f"sc://127.0.0.1:{port}")
        check_master(f"sc://127.0.0.1:{port}/;user_id=anna")
    with pytest.raises(
        SessionError, match=f"nothing answers at sc://127.0.0.1:{port}: start a Spark Connect"
    ):
        check_master(f"sc://127.0.0.1:{port}")


def test_a_connect_server_has_its_own_memory() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(SessionError, match="--memory: the server at sc://"),
        spark_session(f"sc://127.0.0.1:{server.getsockname()[1]}", memory=1 << 30),
    ):
        pass


def test_missing_package_of_the_connect_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    for name in [name for name in sys.modules if name.startswith("pyspark.sql.connect.")]:
        monkeypatch.delitem(sys.modules, name)
    with (
        pytest.raises(SessionError, match=r"grpc.*pip install 'kafka-purgatory\[connect\]'"),
        connect_session("sc://127.0.0.1:1"),
    ):
        pass
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ


def test_loopback_is_used_if_it_reaches_the_master() -> None:
    assert is_on_loopback("local[2]")
    assert is_on_loopback("spark://127.0.0.1:7077,localhost:7078")
    assert is_on_loopback("spark://[::1]:7077")
    assert is_on_loopback("sc://[::1]")
    assert is_on_loopback("sc://[::1]:15002/;user_id=a")
    assert not is_on_loopback("spark://[2001:db8::1]:7077")
    assert not is_on_loopback("spark://127.0.0.1:7077,master.example:7077")
    assert not is_on_loopback("yarn")


def test_threads_of_an_ended_java_leave_the_error_to_their_jobs() -> None:
    session = MagicMock()
    inherit = _inherited_class_loader(session)
    thread = session.sparkContext._jvm.java.lang.Thread.currentThread.return_value
    thread.setContextClassLoader.side_effect = Py4JNetworkError("Java has ended")
    inherit()
    thread.setContextClassLoader.assert_called_once()
