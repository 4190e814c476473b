"""The process from which Spark's Python workers fork, with the imports of the tasks done.

spark.python.daemon.module = purgatory.cdc.apply.daemon
"""

from __future__ import annotations

from purgatory.pipeline.stream.python_daemon import begin

TASK_IMPORTS = (
    "pyspark.sql.pandas.serializers",
    "purgatory.cdc.apply.spark_engine",
    "purgatory.cdc.targets.postgres",
    "purgatory.cdc.targets.sqlite",
    "purgatory.pipeline.source.partition_reader",
)

if __name__ == "__main__":
    begin(TASK_IMPORTS)
