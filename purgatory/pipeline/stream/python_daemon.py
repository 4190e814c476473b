"""The process from which Spark's Python workers fork, with their modules already imported.

    spark.python.daemon.module = purgatory.pipeline.stream.python_daemon

Otherwise each worker imports them before its first row, in half a second of processor time.
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
    """Import modules, and run Spark's daemon; the last argument is the module of its workers."""
    if sys.argv[-1] == _TASKS:
        for name in modules:
            import_module(name)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    begin(_OF_TASKS)
