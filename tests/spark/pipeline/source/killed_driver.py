"""A program of Spark that copies a topic into Parquet, and can be killed while a task reads.

    python -m tests.spark.pipeline.source.killed_driver SERVERS TOPIC FOLDER [VALUE]

FOLDER gets the checkpoint, the rows, and, when all are read, `rows.json`. The task that reads a
record of VALUE kills the whole driver, Java included, by SIGKILL: its batch is planned, some of its
rows may be written, and it is not committed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from purgatory.pipeline.engines.spark.session import spark_session
from purgatory.source import register

MOST_OFFSETS = 400


def copy(servers: str, topic: str, folder: Path, deadly: bytes | None) -> None:
    """Copy the present records, in batches of `MOST_OFFSETS`."""
    driver = os.getpgrp()

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if deadly in batch["value"].to_pylist():
                # Java writes the part of the task that it already got.
                yield batch.slice(0, batch.num_rows // 2)
                os.killpg(driver, signal.SIGKILL)
            yield batch

    rows_path, columns = str(folder / "rows"), "value binary, partition int, offset bigint"
    with spark_session("local[2]", rows=0) as spark:
        register(spark)
        rows = (
            spark.readStream.format("purgatory")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", MOST_OFFSETS)
            .load()
            .select("value", "partition", "offset")
        )
        query = (
            (rows if deadly is None else rows.mapInArrow(pass_on, columns))
            .writeStream.format("parquet")
            .option("path", rows_path)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        written = spark.read.parquet(rows_path).select("partition", "offset", "value").collect()
    document = [[row.partition, row.offset, row.value.decode()] for row in written]
    (folder / "rows.json").write_text(json.dumps(sorted(document)))


if __name__ == "__main__":
    copy(
        sys.argv[1],
        sys.argv[2],
        Path(sys.argv[3]),
        sys.argv[4].encode() if len(sys.argv) > 4 else None,
    )
