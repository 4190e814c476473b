"""The process from which Spark's Python workers fork: with what they import already in it.

    spark.python.daemon.module = purgatory.pipeline.stream.python_daemon

A worker would import all of it before its first row, for half a second of a processor's time each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

_OF_TASKS = (
    "pandas",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "purgatory.pipeline.stream.order",
    "purgatory.pipeline.stream.windowed_waits",
    "purgatory.pipeline.source.partition_reader",
)
_TASKS = "pyspark.worker"


def begin(modules: Sequence[str]) -> None:
    """Import modules, and be the daemon that Spark asks for: the last argument says of whom."""
    if sys.argv[-1] == _TASKS:
        for name in modules:
            import_module(name)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    begin(_OF_TASKS)
