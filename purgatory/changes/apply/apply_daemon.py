"""The process from which the workers of `purgatory apply` fork: with what they import in it.

spark.python.daemon.module = purgatory.changes.apply.apply_daemon
"""

from __future__ import annotations

from purgatory.pipeline.stream.python_daemon import begin

OF_TASKS = (
    "pyspark.sql.pandas.serializers",
    "purgatory.changes.apply.streaming",
    "purgatory.changes.targets.postgres",
    "purgatory.changes.targets.sqlite",
    "purgatory.pipeline.source.partition_reader",
)

if __name__ == "__main__":
    begin(OF_TASKS)
