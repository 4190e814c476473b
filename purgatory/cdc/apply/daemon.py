"""The process from which the workers of `purgatory apply` fork: with what they import in it.

spark.python.daemon.module = purgatory.cdc.apply.daemon
"""

from __future__ import annotations

from purgatory.live.python_daemon import begin

OF_TASKS = (
    "pyspark.sql.pandas.serializers",
    "purgatory.cdc.apply.spark_engine",
    "purgatory.cdc.targets.postgres",
    "purgatory.cdc.targets.sqlite",
    "purgatory.source.partition_reader",
)

if __name__ == "__main__":
    begin(OF_TASKS)
