"""Several commands of the pipeline in one process and one session, which starts only once.

    python -m tests.spark.pipeline.one_session MASTER '[["waits", "TRACE", "--out", "DIR"], ...]'

prints their exit statuses as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from pyspark.sql import SparkSession

from purgatory.cli.main import main
from purgatory.pipeline.engines.spark.session import spark_session

MODULES = ("traces", "session")
"""The modules of `purgatory.pipeline.engines.spark` from which commands take their session."""


def run_all(session: SparkSession, master: str, commands: Sequence[Sequence[str]]) -> list[int]:
    """Run commands in a session that is there, and return their exit statuses."""

    @contextmanager
    def shared(asked: str = "local[*]", **_: object) -> Iterator[SparkSession]:
        assert asked == master
        yield session

    spark = "purgatory.pipeline.engines.spark"
    patches = [patch(f"{spark}.{module}.spark_session", shared) for module in MODULES]
    for one in patches:
        one.start()
    try:
        return [main([*command, "--master", master]) for command in commands]
    finally:
        for one in patches:
            one.stop()


def without_clients_lines(standard_error: str) -> str:
    """Return the output without librdkafka's lines about brokers that other tests have ended.

    librdkafka writes from its own threads as long as a client of those tests lives in the process.
    """
    return "".join(line for line in standard_error.splitlines(True) if "|rdkafka#" not in line)


if __name__ == "__main__":
    with spark_session(sys.argv[1], progress=True) as started:
        statuses = run_all(started, sys.argv[1], json.loads(sys.argv[2]))
    print(json.dumps(statuses))
