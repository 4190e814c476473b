"""The jobs as they are imported from the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

import purgatory.pipeline as package


def test_each_job_is_a_function_of_the_package_after_any_import() -> None:
    code = """
import sys
import purgatory.pipeline
assert not {"pyspark", "plotly", "pyarrow", "pandas"} & set(sys.modules), "nothing heavy yet"
from purgatory.pipeline.jobs.result_orders import OUTCOMES
from purgatory.pipeline import waits, occupancy
from purgatory.pipeline.jobs.run_spans import MOST_POINTS
for name in purgatory.pipeline.FUNCTIONS:
    job = getattr(purgatory.pipeline, name)
    assert callable(job) and job.__name__ == name, name
from purgatory.pipeline import waits as again
assert waits is again
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_unknown_job_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = package.nothing_such  # type: ignore[attr-defined]
