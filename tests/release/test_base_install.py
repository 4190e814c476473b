"""An installation without extras, by `pip install kafka-purgatory`: its messages and commands."""

from __future__ import annotations

import subprocess
import sys

import pytest

OPTIONAL = (
    *("aiohttp", "confluent_kafka", "cramjam", "crc32c", "duckdb", "kio", "numpy", "pandas"),
    *("pyarrow", "pydantic", "pyspark", "rich", "click", "uvloop"),
)
"""The packages of extras: these can't be imported in the programs below."""


def without_extras(program: str) -> subprocess.CompletedProcess[str]:
    hidden = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"
    return subprocess.run(
        [sys.executable, "-c", hidden + program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_star_import_brings_every_public_name() -> None:
    ran = without_extras("from purgatory import *; print(AsyncPurgatory.__name__, callable(audit))")
    assert (ran.stdout, ran.stderr) == ("AsyncPurgatory True\n", "")


def test_completion_and_inspect_see_every_public_name() -> None:
    ran = without_extras(
        "import inspect, purgatory\n"
        "print(set(purgatory.__all__) - set(dir(purgatory)))\n"
        "print(set(purgatory.__all__) - {name for name, _ in inspect.getmembers(purgatory)})"
    )
    assert (ran.stdout, ran.stderr) == ("set()\nset()\n", "")


@pytest.mark.parametrize(
    ("program", "who", "extra"),
    [
        ("from purgatory import audit; audit('trace')", "purgatory.audit", "analysis"),
        ("from purgatory.cluster import Cluster", "purgatory.cluster", "cluster"),
        ("import purgatory.cluster.control.control", "purgatory.cluster", "cluster"),
        ("from purgatory.simulation import Simulation", "purgatory.simulation", "simulation"),
        ("from purgatory.source import register", "purgatory.source", "live"),
        ("from purgatory.pipeline import waits", "purgatory.pipeline.waits", "spark"),
        (
            "from purgatory.sweeps import sweep",
            "purgatory.sweeps.sweep",
            "simulation,spark",
        ),
    ],
)
def test_an_import_names_the_extra_that_it_needs(program: str, who: str, extra: str) -> None:
    last = without_extras(program).stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: {who} needs the ")
    assert last.endswith(f" is missing): pip install 'kafka-purgatory[{extra}]'")


def test_missing_own_module_is_not_reported_as_a_library() -> None:
    missing = "import sys; sys.modules['purgatory.cluster.cluster'] = None"
    ran = subprocess.run(
        [sys.executable, "-c", f"{missing}\nimport purgatory.cluster"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "kafka-purgatory[" not in ran.stderr
    assert "purgatory.cluster.cluster" in ran.stderr


def test_worlds_need_no_extra() -> None:
    modules = "virtual, purgatory.virtual.seeded_tests, purgatory.virtual.failure_report"
    ran = without_extras(f"import purgatory.{modules}")
    assert ran.returncode == 0, ran.stderr
