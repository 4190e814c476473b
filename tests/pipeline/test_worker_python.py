"""The program by which workers start: it has them find the PySpark that is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.spark.session import worker_python


def environment_of(tmp_path: Path, **more: str) -> dict[str, str]:
    """Return variables that have the program made below this folder."""
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **more}


def test_spark_s_zip_files_are_left_out_and_nothing_else(tmp_path: Path) -> None:
    environment = environment_of(tmp_path)
    program = worker_python(environment)
    assert worker_python(environment) == program
    assert [path.name for path in (tmp_path / "kafka-purgatory").iterdir()] == [Path(program).name]
    for spark_s in ("/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-0.10-src.zip:", ""):
        told = subprocess.run(
            [program, "-c", "import os, sys; print(sys.argv[1], os.environ['PYTHONPATH'])", "a  b"],
            env={**environment, "PYTHONPATH": f"{spark_s}/a.jar:/of mine"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout == "a  b /a.jar:/of mine\n"


def test_a_pyspark_that_a_worker_would_not_find_is_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "of somebody" / "pyspark" / "__init__.py"
    monkeypatch.setattr(pyspark, "__file__", str(elsewhere))
    assert worker_python(environment_of(tmp_path, PYTHONPATH="")) == sys.executable
    found = environment_of(tmp_path, PYTHONPATH=f"/other:{elsewhere.parents[1]}")
    assert worker_python(found) != sys.executable


def test_where_no_program_can_be_made_it_is_python_itself(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert worker_python(environment_of(tmp_path / "file")) == sys.executable


def _where(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa
    import pyspark

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"at": [pyspark.__file__]})


@pytest.mark.spark
def test_workers_have_the_pyspark_of_the_driver(spark: SparkSession) -> None:
    rows = spark.range(1).mapInArrow(_where, "at string").collect()
    assert [row.at for row in rows] == [pyspark.__file__]
