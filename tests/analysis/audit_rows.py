"""Small traces for the tests of the audit: rows by name, and many runs in one job of Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from purgatory.analysis.auditing import RunConfiguration, audit


class Send(NamedTuple):
    """An attempt, as in the table `sends`."""

    producer: int
    sequence: int
    value_id: int
    partition: int
    offset: int | None = None
    group: str = "writers"
    attempt: int = 1
    key: int = 0
    acks: int = -1
    outcome: str = "ok"
    error: str | None = None
    send_us: int = 0
    answer_us: int | None = 1
    topic: str = "orders"


class Read(NamedTuple):
    """A record that was delivered, as in the table `reads`."""

    consumer: int
    poll: int
    partition: int
    offset: int
    value_id: int
    group: str = "readers"
    time_us: int = 0
    applied: bool = True
    topic: str = "orders"


class Effect(NamedTuple):
    """An application of an input, as in the table `effects`."""

    partition: int
    offset: int
    key: int
    version: int
    time_us: int
    group: str = "readers"
    consumer: int = 0
    topic: str = "orders"


class Commit(NamedTuple):
    """An offset stored with the results, as in the table `commits`."""

    partition: int
    offset: int
    time_us: int = 0
    group: str = "readers"
    topic: str = "orders"


@dataclass
class SmallTrace:
    """The rows of one run, and its configuration."""

    sends: list[Send] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    configuration: RunConfiguration = field(default_factory=RunConfiguration)


Found = Counter[tuple[str, str | None, str, str | None]]
"""Of one run: how many cases there are by anomaly, group, verdict and setting."""

_KINDS = {"group": pa.string(), "topic": pa.string(), "outcome": pa.string(), "error": pa.string()}
_INTS = {"attempt", "acks", "partition"}


def tables(
    spark: SparkSession, traces: Mapping[str, SmallTrace]
) -> tuple[DataFrame, DataFrame, DataFrame, DataFrame]:
    """The four tables of some runs as Spark has them."""
    made = []
    for name, kind in (("sends", Send), ("reads", Read), ("effects", Effect), ("commits", Commit)):
        rows = [
            {"run_id": run_id, **row._asdict()}
            for run_id, trace in traces.items()
            for row in getattr(trace, name)
        ]
        schema = pa.schema(
            [("run_id", pa.string()), *((field, _kind(field)) for field in kind._fields)]
        )
        made.append(spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema)))
    sends, reads, effects, commits = made
    return sends, reads, effects, commits


def audited(
    spark: SparkSession, traces: Mapping[str, SmallTrace], **options: Any
) -> dict[str, Found]:
    """Audit some runs in one job, and return what was found in each: rows with a count above 0."""
    sends, reads, effects, commits = tables(spark, traces)
    configuration = {run_id: trace.configuration for run_id, trace in traces.items()}
    with audit(sends, reads, effects, commits, configuration, **options) as result:
        rows = result.audit.toArrow().to_pylist()
    found: dict[str, Found] = {run_id: Counter() for run_id in traces}
    for row in rows:
        if row["count"]:
            key = (row["anomaly"], row["group"], row["verdict"], row["setting"])
            assert key not in found[row["run_id"]], "a count has one row"
            found[row["run_id"]][key] = row["count"]
    return found


def _kind(name: str) -> pa.DataType:
    if name == "applied":
        return pa.bool_()
    return _KINDS.get(name, pa.int32() if name in _INTS else pa.int64())
