"""The jobs as they are imported from the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

import purgatory.analysis as package


def test_each_job_is_a_function_of_the_package_whatever_was_imported_before() -> None:
    code = """
import sys
import purgatory.analysis
assert not {"pyspark", "plotly", "pyarrow", "pandas"} & set(sys.modules), "nothing heavy yet"
from purgatory.analysis.waiting_words import OUTCOMES
from purgatory.analysis import waits, occupancy
from purgatory.analysis.bucket_widths import MOST_POINTS
for name in purgatory.analysis.JOBS:
    job = getattr(purgatory.analysis, name)
    assert callable(job) and job.__name__ == name, name
from purgatory.analysis import waits as again
assert waits is again
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_a_name_that_is_no_job_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = package.nothing_such  # type: ignore[attr-defined]
