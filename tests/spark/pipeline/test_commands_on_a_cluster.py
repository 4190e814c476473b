"""Commands on one standalone cluster, beside which a worker dies: the lines of docs/storage.md for
spark-submit, and an audit, with transactions.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from purgatory.pipeline.engines.run import run_job
from tests.benchmarks.large_traces import write_large_trace
from tests.benchmarks.planted_blocks import Shape
from tests.spark.pipeline.cluster import Cluster, command_environment
from tests.spark.pipeline.conftest import RandomOperations, WriteTrace

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "storage.md").read_text(encoding="utf-8")
HOME = Path(pyspark.__file__).parent


def _lines() -> list[str]:
    """The commands of the document's section, a continued one as one."""
    section = DOCUMENT.split("## With spark-submit", 1)[1].split("\n## ", 1)[0]
    joined = section.replace("\\\n", " ")
    return [line.strip() for line in re.findall(r"^    (\S.*)$", joined, re.MULTILINE)]


def _kill_a_worker_midway(cluster: Cluster, process: subprocess.Popen[str]) -> str:
    """Kill a worker when the first tasks of a command are done, and return what it then says.

    The command shows its progress. Another worker takes the place of the killed one in the end.
    """
    before = len(cluster.master.lines)
    shown = process.stderr or process.stdout
    assert shown is not None
    for line in shown:
        if " tasks done" in line:  # the first of many
            break
    cluster.workers.pop().kill()
    said = "".join(filter(None, process.communicate(timeout=800)))
    cluster.add_worker().wait_for("Successfully registered with master")
    master = cluster.master
    lost = master.wait_for(r"Removing worker|Removing executor .* because", after=before)
    ended = master.wait_for(r"Removing app ", after=before)
    told = [line for line in master.lines if line in (lost.string, ended.string)]
    assert told[-1] == ended.string, "it was over before the worker died"
    return said


def test_documented_lines_run_though_a_worker_dies(
    cluster: Cluster, write_trace: WriteTrace, random_operations: RandomOperations, tmp_path: Path
) -> None:
    zip_it, launcher, submit = _lines()
    operations = random_operations(3, 800)
    trace = write_trace(tmp_path / "runs" / "a", operations, duration_ms=1000, parts=16)
    environment = command_environment() | {"PYSPARK_PYTHON": sys.executable}
    del environment["PYSPARK_SUBMIT_ARGS"]
    python = [sys.executable, *shlex.split(zip_it)[1:]]
    subprocess.run(python, cwd=tmp_path, env=environment | {"PYTHONPATH": str(ROOT)}, check=True)
    assert "purgatory/cli/main.py" in zipfile.ZipFile(tmp_path / "kafka-purgatory.zip").namelist()
    subprocess.run(["sh", "-c", launcher], cwd=tmp_path, check=True)
    # The package comes from the zip file alone: elsewhere it could be an older one.
    told = f"import purgatory; open({str(tmp_path / 'from')!r}, 'w').write(purgatory.__file__)\n"
    program = tmp_path / "purgatory_job.py"
    program.write_text(told + program.read_text(encoding="utf-8"), encoding="utf-8")
    words = {"spark://HOST:7077": cluster.address, "/shared/runs": str(trace.parent)}
    words["/shared/waits"] = str(tmp_path / "waits")
    command = [words.get(word, word) for word in shlex.split(submit)]
    assert command[0] == "spark-submit"
    environment.pop("PYTHONPATH", None)
    # For a shuffle, as many tasks as the cluster has cores: 200, as Spark has it, take long. To
    # read, one for each part: there is much to do yet when the first is done.
    settings = "spark.sql.shuffle.partitions 2\nspark.sql.files.maxPartitionBytes 1k\n"
    (tmp_path / "spark-defaults.conf").write_text(settings)
    environment |= {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    with subprocess.Popen(
        [str(HOME / "bin" / "spark-submit"), *command[1:], "--progress"],
        cwd=tmp_path,
        env=environment | {"SPARK_CONF_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,  # spark-submit shows there what Python says on either
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        said = _kill_a_worker_midway(cluster, process)
    assert process.returncode == 0, said
    assert (tmp_path / "from").read_text().endswith("kafka-purgatory.zip/purgatory/__init__.py")
    run_job("waits", [trace], tmp_path / "by-duckdb", engine="duckdb")
    rows = pq.read_table(tmp_path / "waits" / "waits").to_pylist()
    assert rows == pq.read_table(tmp_path / "by-duckdb" / "waits").to_pylist()
    everything = [row for row in rows if (row["kind"], row["outcome"]) == ("all", "all")]
    assert sum(row["operations"] for row in everything if row["topic"] == "*") == len(operations)
    assert any("Registered app purgatory" in line for line in cluster.master.lines)


@pytest.mark.exhaustive  # by day waits survive a worker, and the audit runs on one machine
@pytest.mark.parametrize(
    ("rows", "planted", "settings"),
    [
        (60_000, 15, ["spark.sql.shuffle.partitions=3"]),
        (600_000, 50, []),  # by the default settings
    ],
)
def test_audit_on_a_cluster_survives_a_killed_worker(
    cluster: Cluster, tmp_path: Path, rows: int, planted: int, settings: list[str]
) -> None:
    trace, out = tmp_path / "trace", tmp_path / "out"
    write_large_trace(trace, Shape(rows, planted=planted))
    expected = json.loads((trace / "expected.json").read_text("utf-8"))
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "purgatory", "audit", str(trace), "--out", str(out)),
            *("--engine", "spark", "--master", cluster.address, "--progress"),
        ],
        env=command_environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        said = _kill_a_worker_midway(cluster, process)
    assert process.returncode == 1, said
    found: Counter[str] = Counter()
    for row in pq.read_table(out / "audit").to_pylist():
        found[row["anomaly"]] += row["count"]
    assert found == expected
