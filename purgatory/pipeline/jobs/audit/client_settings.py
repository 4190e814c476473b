"""The configuration of a run's producers and consumers, which decides what is permitted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from purgatory.pipeline.errors import TraceError
from purgatory.pipeline.jobs.audit.anomalies import EXPECTATIONS

if TYPE_CHECKING:
    from purgatory.pipeline.ingest.trace_set import Trace


@dataclass(frozen=True)
class ProducerSettings:
    """The settings of a producer group; None: unknown.

    `single_writer`: a partition should have one writer. Each row of the sends has its own `acks`.
    """

    group: str
    idempotence: bool | None = None
    max_in_flight: int | None = None
    retries: int | None = None
    single_writer: bool | None = None
    acks: int | None = None


@dataclass(frozen=True)
class ConsumerSettings:
    """The settings of a consumer group; None: unknown.

    `assignment` is `assign` or `subscribe`, `isolation` is `read_uncommitted` or `read_committed`.
    """

    group: str
    assignment: str | None = None
    isolation: str | None = None


@dataclass(frozen=True)
class RunConfiguration:
    """The configuration of a run; the settings of other groups are unknown.

    `complete` is false for an interrupted run, whose tables may lack rows. `observed`: brokers or a
    proxy wrote the trace, which can't see what clients do.
    """

    producers: Sequence[ProducerSettings] = ()
    consumers: Sequence[ConsumerSettings] = ()
    complete: bool = True
    observed: bool = False


Configuration = RunConfiguration | Mapping[str, RunConfiguration] | None
"""The settings for all runs, or by run id; other runs count as complete."""


SETTINGS: Mapping[str, Mapping[str, str]] = {
    "producers": {
        "run_id": "string",
        "group": "string",
        "idempotence": "boolean",
        "max_in_flight": "bigint",
        "retries": "bigint",
        "single_writer": "boolean",
    },
    "consumers": {
        "run_id": "string",
        "group": "string",
        "assignment": "string",
        "isolation": "string",
    },
    "runs": {"run_id": "string", "complete": "boolean", "observed": "boolean"},
}
"""The columns of the small tables of a configuration."""


def settings_rows(configuration: Configuration) -> Mapping[str, list[tuple[object, ...]]]:
    """The rows of the tables of `SETTINGS`; a `run_id` of None stands for all runs.

    Raises:
        ValueError: a group occurs twice in one run, or has an invalid setting.
    """
    runs = dict(_runs(configuration))
    for run_id, run in runs.items():
        check_run(run_id, run)
    return {
        "producers": [
            (
                run_id,
                group.group,
                group.idempotence,
                group.max_in_flight,
                group.retries,
                group.single_writer,
            )
            for run_id, run in runs.items()
            for group in run.producers
        ],
        "consumers": [
            (run_id, group.group, group.assignment, group.isolation)
            for run_id, run in runs.items()
            for group in run.consumers
        ],
        "runs": [(run_id, run.complete, run.observed) for run_id, run in runs.items()],
    }


def _runs(configuration: Configuration) -> Iterator[tuple[str | None, RunConfiguration]]:
    if configuration is None:
        return
    if isinstance(configuration, RunConfiguration):
        yield None, configuration
    elif isinstance(configuration, Mapping):
        yield from configuration.items()
    else:
        raise _wrong_configuration(configuration)


def _wrong_configuration(given: object) -> TypeError:
    return TypeError(
        f"configuration must be a RunConfiguration, not {given!r}; what is expected is given as "
        "expect=['once']"
    )


def expected_by_anomaly(expect: Sequence[str]) -> Mapping[str, str]:
    """The first expectation that each anomaly violates.

    Raises:
        ValueError: an unknown expectation.
    """
    names = expectation_names(expect)
    return {anomaly: name for name in reversed(names) for anomaly in EXPECTATIONS[name]}


def expectation_names(expect: str | Sequence[str]) -> Sequence[str]:
    """The names of expectations; a single one may be a string.

    Raises:
        ValueError: an unknown expectation.
    """
    names = [expect] if isinstance(expect, str) else list(expect)
    unknown = sorted({name for name in names if name not in EXPECTATIONS}, key=str)
    if unknown:
        known = ", ".join(EXPECTATIONS)
        raise ValueError(f"there is no expectation {unknown[0]!r}: there are {known}")
    return names


def observed(configuration: RunConfiguration | None) -> RunConfiguration:
    """The configuration of a run that brokers or a proxy observed.

    Raises:
        TypeError: it is none, such as an expectation.
    """
    if configuration is not None and not isinstance(configuration, RunConfiguration):
        raise _wrong_configuration(configuration)
    return replace(configuration or RunConfiguration(), observed=True)


def check_run(run_id: str | None, run: RunConfiguration) -> None:
    """Check a configuration.

    Raises:
        ValueError: a group occurs twice, or has an invalid setting.
    """
    where = "the configuration" if run_id is None else f"the configuration of {run_id!r}"
    for kind, settings in (("producers", run.producers), ("consumers", run.consumers)):
        groups = [group.group for group in settings]
        twice = sorted({group for group in groups if groups.count(group) > 1})
        if twice:
            raise ValueError(f"{where} names the group {twice[0]!r} of {kind} more than once")
    for group in run.consumers:
        _check_choice(where, group, "assignment", ("assign", "subscribe"))
        _check_choice(where, group, "isolation", ("read_uncommitted", "read_committed"))


def _check_choice(
    where: str, settings: ConsumerSettings, name: str, choices: Sequence[str]
) -> None:
    value = getattr(settings, name)
    if value is not None and value not in choices:
        raise ValueError(
            f"{where}: {name} of the consumers {settings.group!r} must be "
            f"{' or '.join(choices)}, and is {value!r}"
        )


# The configuration of runs from the heads of their traces.


S = TypeVar("S", ProducerSettings, ConsumerSettings)


def configuration_of(
    traces: Sequence[Trace], damaged: Collection[str] = ()
) -> dict[str, RunConfiguration]:
    """The configuration of runs from the heads of their traces, by run id.

    Raises:
        TraceError: a group occurs twice, or has an invalid setting.
    """
    configuration = {}
    for trace in traces:
        complete = trace.complete and trace.run_id not in damaged
        try:
            configuration[trace.run_id] = configuration_of_head(
                trace.run_id,
                trace.producers or (),
                trace.consumers or (),
                complete=complete,
                observed=trace.observed,
            )
        except ValueError as error:
            raise TraceError(f"{trace.folder}: {error}") from error
    return configuration


def configuration_of_head(
    run_id: str,
    producers: Sequence[Mapping[str, Any]],
    consumers: Sequence[Mapping[str, Any]],
    *,
    complete: bool,
    observed: bool = False,
) -> RunConfiguration:
    """The configuration of one run from its head.

    Raises:
        ValueError: a group occurs twice, or has an invalid setting.
    """
    run = RunConfiguration(
        producers=[_settings(ProducerSettings, group) for group in producers],
        consumers=[_settings(ConsumerSettings, group) for group in consumers],
        complete=complete,
        observed=observed,
    )
    check_run(run_id, run)
    return run


def _settings(kind: type[S], values: Mapping[str, Any]) -> S:
    return kind(
        **{field.name: values[field.name] for field in fields(kind) if field.name in values}
    )
