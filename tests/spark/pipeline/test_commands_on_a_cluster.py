"""Commands on one standalone cluster: the lines of docs/storage.md for spark-submit, and an audit,
with transactions, beside which a worker dies.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest

from tests.benchmarks.large_traces import write_large_trace
from tests.benchmarks.planted_blocks import Shape
from tests.spark.pipeline.cluster import Cluster, command_environment

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "storage.md").read_text(encoding="utf-8")
HOME = Path(pyspark.__file__).parent


def _lines() -> list[str]:
    """The commands of the document's section, a continued one as one."""
    section = DOCUMENT.split("## With spark-submit", 1)[1].split("\n## ", 1)[0]
    joined = section.replace("\\\n", " ")
    return [line.strip() for line in re.findall(r"^    (\S.*)$", joined, re.MULTILINE)]


def test_documented_lines_run(
    cluster: Cluster,
    write_trace: Callable[..., Path],
    hand_operations: list[Any],
    tmp_path: Path,
) -> None:
    zip_it, launcher, submit = _lines()
    trace = write_trace(tmp_path / "runs" / "a", hand_operations)
    environment = command_environment() | {"PYSPARK_PYTHON": sys.executable}
    del environment["PYSPARK_SUBMIT_ARGS"]
    python = [sys.executable, *shlex.split(zip_it)[1:]]
    subprocess.run(python, cwd=tmp_path, env=environment | {"PYTHONPATH": str(ROOT)}, check=True)
    assert "purgatory/cli/main.py" in zipfile.ZipFile(tmp_path / "kafka-purgatory.zip").namelist()
    subprocess.run(["sh", "-c", launcher], cwd=tmp_path, check=True)
    # The package comes from the zip file alone: elsewhere it could be an older one.
    told = "import purgatory; print('from', purgatory.__file__)\n"
    program = tmp_path / "purgatory_job.py"
    program.write_text(told + program.read_text(encoding="utf-8"), encoding="utf-8")
    words = {"spark://HOST:7077": cluster.address, "/shared/runs": str(trace.parent)}
    words["/shared/waits"] = str(tmp_path / "waits")
    command = [words.get(word, word) for word in shlex.split(submit)]
    assert command[0] == "spark-submit"
    environment.pop("PYTHONPATH", None)
    # As many tasks as the cluster has cores: 200 for eight operations, as Spark has it, take long.
    (tmp_path / "spark-defaults.conf").write_text("spark.sql.shuffle.partitions 2\n")
    environment |= {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [str(HOME / "bin" / "spark-submit"), *command[1:]],
        cwd=tmp_path,
        env=environment | {"SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^from .*kafka-purgatory\.zip", done.stdout, re.MULTILINE)
    rows = pq.read_table(tmp_path / "waits" / "waits").to_pylist()
    everything = [row for row in rows if (row["kind"], row["outcome"]) == ("all", "all")]
    assert sum(row["operations"] for row in everything if row["topic"] == "*") == 8
    assert any("Registered app purgatory" in line for line in cluster.master.lines)


@pytest.mark.parametrize(
    ("rows", "planted", "settings"),
    [
        (60_000, 15, ["spark.sql.shuffle.partitions=3"]),
        pytest.param(600_000, 50, [], marks=pytest.mark.exhaustive),  # by the default settings
    ],
)
def test_audit_on_a_cluster_survives_a_killed_worker(
    cluster: Cluster, tmp_path: Path, rows: int, planted: int, settings: list[str]
) -> None:
    trace, out = tmp_path / "trace", tmp_path / "out"
    write_large_trace(trace, Shape(rows, planted=planted))
    expected = json.loads((trace / "expected.json").read_text("utf-8"))
    before = len(cluster.master.lines)
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
        assert process.stderr is not None
        for line in process.stderr:
            if " tasks done" in line:  # the first of many
                break
        cluster.workers.pop().kill()
        _, errors = process.communicate(timeout=800)
    cluster.add_worker().wait_for("Successfully registered with master")
    assert process.returncode == 1, errors
    cluster.master.wait_for(r"Removing worker|Removing executor .* because", after=before)
    found: Counter[str] = Counter()
    for row in pq.read_table(out / "audit").to_pylist():
        found[row["anomaly"]] += row["count"]
    assert found == expected
