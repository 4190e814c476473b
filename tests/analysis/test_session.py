"""The session's settings, and what is said of a master that is none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from purgatory.analysis.errors import PipelineError, SessionError
from purgatory.analysis.spark.connect import connect_session
from purgatory.analysis.spark.session import (
    _configuration,
    _settings,
    check_master,
    is_on_loopback,
    spark_errors,
)
from purgatory.analysis.spark.worker_python import worker_python


@pytest.mark.spark
def test_settings(spark: SparkSession) -> None:
    context = spark.sparkContext
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert context.uiWebUrl is None
    # Started for tables of a few rows, where each further task costs more than its work.
    assert spark.conf.get("spark.sql.shuffle.partitions") == "1"
    # With pages of 16 MB the aggregations of one task of an audit need more than its share.
    assert spark.conf.get("spark.buffer.pageSize") == "1m"
    options = spark.conf.get("spark.driver.extraJavaOptions") or ""
    assert "-XX:TieredStopAtLevel=1" in options
    assert "-XX:ReservedCodeCacheSize=240m" in options
    assert os.environ["PYSPARK_PYTHON"] == worker_python(os.environ)
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_much_data_and_clusters_get_no_settings_for_a_quick_start(tmp_path: Path) -> None:
    cluster = "spark://127.0.0.1:7077"
    for master, small in ((cluster, True), ("local[*]", False)):
        java = _configuration(master, tmp_path, small, "-Da=b").get("spark.driver.extraJavaOptions")
        assert "-Da=b" in str(java)
        assert "TieredStopAtLevel" not in str(java)
    assert "spark.sql.shuffle.partitions" not in dict(_settings(cluster, small=True))
    assert "spark.buffer.pageSize" not in dict(_settings(cluster, small=True))
    much = dict(_settings("local[*]", small=False))
    assert int(much["spark.sql.shuffle.partitions"]) > 1
    assert "spark.buffer.pageSize" not in much


@pytest.mark.spark
def test_what_spark_raises_becomes_one_line(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    with pytest.raises(PipelineError) as caught, spark_errors(log):
        spark.sql("select raise_error('out of cheese')").collect()
    message = str(caught.value)
    assert "out of cheese" in message
    assert str(log) in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "master", ["", "local[0]", "local[two]", "spark://host", "laptop", "yarn!", "sc://", "sc://a:b"]
)
def test_a_master_that_spark_does_not_know(master: str) -> None:
    with pytest.raises(SessionError, match=r"is no Spark master: give local\[\*\]"):
        check_master(master)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[*, 3]", "yarn"])
def test_masters_that_need_no_answer(master: str) -> None:
    check_master(master)


def test_a_master_that_does_not_answer_is_said_so_before_spark_starts() -> None:
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


def test_what_the_client_of_connect_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    for name in [name for name in sys.modules if name.startswith("pyspark.sql.connect.")]:
        monkeypatch.delitem(sys.modules, name)
    with (
        pytest.raises(SessionError, match=r"grpc.*pip install 'kafka-purgatory\[connect\]'"),
        connect_session("sc://127.0.0.1:1"),
    ):
        pass
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ


def test_loopback_is_kept_to_where_it_reaches() -> None:
    assert is_on_loopback("local[2]")
    assert is_on_loopback("spark://127.0.0.1:7077,localhost:7078")
    assert is_on_loopback("spark://[::1]:7077")
    assert is_on_loopback("sc://[::1]")
    assert is_on_loopback("sc://[::1]:15002/;user_id=a")
    assert not is_on_loopback("spark://[2001:db8::1]:7077")
    assert not is_on_loopback("spark://127.0.0.1:7077,master.example:7077")
    assert not is_on_loopback("yarn")


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_where_memory_ends_the_line_says_how_to_give_more(tmp_path: Path) -> None:
    trace = tmp_path / "run"
    trace.mkdir()
    (trace / "operations.jsonl").write_text('{"run_id": "' + "x" * 60_000_000 + '"}\n')
    command = [sys.executable, "-m", "purgatory", "waits", str(trace), "--engine", "spark"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    said = ran.stderr.splitlines()[-1]
    assert said.startswith(
        "purgatory waits: Spark's Java process ran out of memory; give it more: PYSPARK_SUBMIT_ARGS"
    )
