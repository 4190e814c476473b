"""kafka-python's integration tests, as they are in its source distribution."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.suites.outcomes import Outcome, Verdict, read_junit
from tests.suites.sources import BUILD, KAFKA_PYTHON, ROOT, python_source

NAME = f"kafka-python {KAFKA_PYTHON}"
SHORT = "end_to_end or create_partitions or kafka_consumer__blocking or test_produce_and_consume"
_KAFKA_VERSION = "4.3"
"""The version of Kafka that the client infers from the cluster's APIs."""
_OPTIONS = "-q -W ignore -p no:cacheprovider -p no:purgatory -p no:xdist --timeout 180"


def run(only: str, short: bool) -> Iterator[Outcome]:
    """Yield the outcome of each case, once all ran; failed ones are tried once more.

    Args:
        only: an expression for pytest's option `-k`.
        short: run the short selection.
    """
    source = python_source("kafka-python", KAFKA_PYTHON)
    # The distribution lacks the package's `__init__.py` and Kafka's own folder.
    (source / "test" / "__init__.py").touch()
    (source / "servers" / _KAFKA_VERSION / "kafka-bin").mkdir(parents=True, exist_ok=True)
    report = BUILD / "kafka-python.xml"
    outcomes = _run(source, report, "-k", SHORT if short else only)
    failed = [one.case for one in outcomes.values() if one.verdict is Verdict.FAILED]
    if failed:
        again = _run(source, report, *failed)
        outcomes.update({name: one._replace(tries=2) for name, one in again.items()})
    yield from outcomes.values()


def _run(source: Path, report: Path, *chosen: str) -> dict[str, Outcome]:
    report.unlink(missing_ok=True)
    where = () if "::" in chosen[-1] else ("test/integration",)
    options = [*_OPTIONS.split(), "-p", "tests.suites.kafka_python_broker"]
    with (BUILD / "kafka-python.log").open("w", encoding="utf-8") as output:
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *where, *chosen],
            cwd=source,
            env={
                **os.environ,
                "KAFKA_VERSION": _KAFKA_VERSION,
                "PYTHONPATH": f"{source}:{ROOT}",
            },
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return {one.case: one for one in read_report(report)}


def read_report(report: Path) -> Iterator[Outcome]:
    """Yield the outcomes in a report of pytest's."""
    for one in read_junit(report):
        file, _, of_class = one.of.replace(".", "/").partition("/Test")
        within = f"Test{of_class}::" if of_class else ""
        yield one.outcome(NAME, f"{file}.py::{within}{one.name}")
