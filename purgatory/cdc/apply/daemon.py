"""The process from which Spark's Python workers fork, with the imports of the tasks done.

    spark.python.daemon.module = purgatory.cdc.apply.daemon

Otherwise each worker imports them before its first row, in half a second of processor time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

TASK_IMPORTS = (
    "pyspark.sql.pandas.serializers",
    "purgatory.cdc.apply.spark_engine",
    "purgatory.cdc.targets.postgres",
    "purgatory.cdc.targets.sqlite",
    "purgatory.source.partition_reader",
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
    begin(TASK_IMPORTS)
