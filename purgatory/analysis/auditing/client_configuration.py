"""The configuration of a run's producers and consumers: it decides what is permitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


@dataclass(frozen=True)
class ProducerSettings:
    """The settings of a producer group; None is not known.

    `single_writer` says that a partition should have one writer. What was asked of `acks` is in
    each row of the sends.
    """

    group: str
    idempotence: bool | None = None
    max_in_flight: int | None = None
    retries: int | None = None
    single_writer: bool | None = None
    acks: int | None = None


@dataclass(frozen=True)
class ConsumerSettings:
    """The settings of a consumer group; None is not known.

    `assignment` is `assign` or `subscribe`, `isolation` is `read_uncommitted` or `read_committed`.
    """

    group: str
    assignment: str | None = None
    isolation: str | None = None


@dataclass(frozen=True)
class RunConfiguration:
    """What is known of a run beside its rows; a group that is not named has unknown settings.

    `complete` is false for a run that was interrupted, whose tables may lack rows.
    """

    producers: Sequence[ProducerSettings] = ()
    consumers: Sequence[ConsumerSettings] = ()
    complete: bool = True


Configuration = RunConfiguration | Mapping[str, RunConfiguration] | None
"""One for all runs, or one for each run id; a run that is not named counts as complete."""

_PRODUCERS = (
    "run_id string, group string, idempotence boolean, max_in_flight bigint, retries bigint, "
    "single_writer boolean"
)
_CONSUMERS = "run_id string, group string, assignment string, isolation string"
_RUNS = "run_id string, complete boolean"


@dataclass(frozen=True)
class SettingsTables:
    """A configuration as small tables, to be joined by broadcast. O(groups) rows.

    With `per_run` false, they and `complete` hold for all runs, and their `run_id` is null.
    """

    producers: DataFrame
    consumers: DataFrame
    runs: DataFrame
    per_run: bool
    complete: bool = True

    def of_producers(self, rows: DataFrame, group: str, prefix: str) -> DataFrame:
        """Rows with the settings of the producer group named in a column, under prefixed names."""
        return self._joined(rows, self.producers, group, prefix)

    def of_consumers(self, rows: DataFrame, group: str, prefix: str) -> DataFrame:
        """The same for consumer groups."""
        return self._joined(rows, self.consumers, group, prefix)

    def with_isolation(self, reads: DataFrame) -> DataFrame:
        """Reads with their own `isolation`, or that of their group."""
        joined = self.of_consumers(reads, "group", "settings_")
        known = joined.withColumn("isolation", f.coalesce("isolation", "settings_isolation"))
        return known.select(*reads.columns)

    def with_complete(self, rows: DataFrame) -> DataFrame:
        """Rows with a column `complete`."""
        if not self.per_run:
            return rows.withColumn("complete", f.lit(self.complete))
        joined = rows.join(f.broadcast(self.runs), "run_id", "left")
        return joined.withColumn("complete", f.coalesce("complete", f.lit(True)))

    def _joined(self, rows: DataFrame, settings: DataFrame, group: str, prefix: str) -> DataFrame:
        named = settings.select(
            f.col("run_id").alias(f"{prefix}run_id"),
            *(f.col(name).alias(prefix + name) for name in settings.columns if name != "run_id"),
        )
        if not self.per_run:
            named = named.drop(f"{prefix}run_id")
            same = f.col(group) == f.col(f"{prefix}group")
        else:
            same = (f.col("run_id") == f.col(f"{prefix}run_id")) & (
                f.col(group) == f.col(f"{prefix}group")
            )
        joined = rows.join(f.broadcast(named), same, "left")
        return joined.drop(f"{prefix}run_id", f"{prefix}group")


def settings_tables(session: SparkSession, configuration: Configuration) -> SettingsTables:
    """The tables of a configuration.

    Raises:
        ValueError: a group is named twice in one run, or has a setting that does not exist.
    """
    runs = dict(_runs(configuration))
    for run_id, run in runs.items():
        check_run(run_id, run)
    return SettingsTables(
        session.createDataFrame(list(_producers(runs.items())), _PRODUCERS),
        session.createDataFrame(list(_consumers(runs.items())), _CONSUMERS),
        session.createDataFrame([(run_id, run.complete) for run_id, run in runs.items()], _RUNS),
        per_run=not isinstance(configuration, RunConfiguration),
        complete=all(run.complete for run in runs.values()),
    )


def _runs(configuration: Configuration) -> Iterator[tuple[str | None, RunConfiguration]]:
    if isinstance(configuration, RunConfiguration):
        yield None, configuration
    elif configuration is not None:
        yield from configuration.items()


def _producers(runs: Iterable[tuple[str | None, RunConfiguration]]) -> Iterator[tuple[Any, ...]]:
    for run_id, run in runs:
        for one in run.producers:
            yield (
                run_id,
                one.group,
                one.idempotence,
                one.max_in_flight,
                one.retries,
                one.single_writer,
            )


def _consumers(runs: Iterable[tuple[str | None, RunConfiguration]]) -> Iterator[tuple[Any, ...]]:
    for run_id, run in runs:
        for one in run.consumers:
            yield run_id, one.group, one.assignment, one.isolation


def check_run(run_id: str | None, run: RunConfiguration) -> None:
    """Refuse a configuration that contradicts itself.

    Raises:
        ValueError: a group is named twice, or has a setting that does not exist.
    """
    where = "the configuration" if run_id is None else f"the configuration of {run_id!r}"
    for kind, named in (("producers", run.producers), ("consumers", run.consumers)):
        groups = [one.group for one in named]
        twice = sorted({group for group in groups if groups.count(group) > 1})
        if twice:
            raise ValueError(f"{where} names the group {twice[0]!r} of {kind} more than once")
    for one in run.consumers:
        _check_choice(where, one, "assignment", ("assign", "subscribe"))
        _check_choice(where, one, "isolation", ("read_uncommitted", "read_committed"))


def _check_choice(where: str, settings: ConsumerSettings, name: str, right: Sequence[str]) -> None:
    value = getattr(settings, name)
    if value is not None and value not in right:
        raise ValueError(
            f"{where}: {name} of the consumers {settings.group!r} must be "
            f"{' or '.join(right)}, and is {value!r}"
        )
