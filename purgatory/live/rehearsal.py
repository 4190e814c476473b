"""The queries once over, on rows that say nothing, for what Java loads on the way."""

from __future__ import annotations

import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.live.live_jobs import LiveJobs
from purgatory.live.live_metrics import LiveMetrics
from purgatory.live.result_places import open_places
from purgatory.live.stream import run_jobs
from purgatory.trace.trace_schema import REQUIRED_TABLES


def rehearse(session: SparkSession, folder: Path) -> None:
    """Run the queries of ``purgatory stream``, then one over files as an analysis has it.

    Args:
        session: to run them in; its settings are changed.
        folder: an empty one; all is written there.
    """
    for table in REQUIRED_TABLES:
        (folder / table).mkdir()
        # No row of any table: it is set aside, which takes the same way through Spark.
        (folder / table / "rows.txt").write_text("{}\n" * 10, encoding="utf-8")

    def records(*tables: str) -> DataFrame:
        text = session.readStream.text(str(folder / f"{{{','.join(tables)}}}"))
        return text.select("value", f.lit(tables[0]).alias("table"))

    jobs = LiveJobs(out=folder / "out", checkpoint=folder / "checkpoint", once=True)
    run_jobs(session, records, jobs, open_places(jobs), LiveMetrics(), threading.Event())
    aside = session.read.parquet(str(folder / "out" / "aside" / "*"))
    reasons = aside.groupBy("source", "reason").agg(f.sum("rows").alias("all"))
    whole = aside.join(reasons, ["source", "reason"]).orderBy("source")
    whole.write.parquet(str(folder / "whole"))
