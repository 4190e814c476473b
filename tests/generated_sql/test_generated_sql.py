"""What DuckDB runs is what the source of the jobs gives, and needs nothing of Spark's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from purgatory.pipeline.engines.duckdb.job_sql import read_statements


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_sql_is_what_the_source_gives() -> None:
    # In a process of its own: SQLFrame takes the place of PySpark in it.
    checked = subprocess.run(
        [sys.executable, "-m", "tests.generated_sql.generate", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_each_statement_makes_a_table_that_goes_with_the_connection() -> None:
    for statement in read_statements("audit"):
        assert statement.startswith("CREATE OR REPLACE TEMP TABLE ")


def test_no_job_imports_spark_or_sqlframe_or_what_only_simulations_need() -> None:
    program = (
        "import sys, purgatory.pipeline.engines.duckdb.opened_traces\n"
        "import purgatory.pipeline.engines.duckdb.audit\n"
        "import purgatory.pipeline.sweeps.page\n"
        "heavy = {'pyspark', 'sqlframe', 'sqlglot', 'pandas', 'pydantic'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert told.stdout == "[]\n"
