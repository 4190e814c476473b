"""The configuration of runs, as the heads of their traces tell it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from purgatory.analysis.auditing.client_configuration import (
    ConsumerSettings,
    ProducerSettings,
    RunConfiguration,
    check_run,
)
from purgatory.analysis.errors import TraceError
from purgatory.analysis.traces.survey import Trace

S = TypeVar("S", ProducerSettings, ConsumerSettings)


def configuration_of(
    traces: Sequence[Trace], damaged: Collection[str] = ()
) -> dict[str, RunConfiguration]:
    """What the heads of traces tell of their producers and consumers, by run id.

    Raises:
        TraceError: a group that comes twice, or a setting that does not exist.
    """
    found = {}
    for trace in traces:
        complete = trace.complete and trace.run_id not in damaged
        try:
            found[trace.run_id] = configuration_of_head(
                trace.run_id, trace.producers or (), trace.consumers or (), complete=complete
            )
        except ValueError as error:
            raise TraceError(f"{trace.folder}: {error}") from error
    return found


def configuration_of_head(
    run_id: str,
    producers: Sequence[Mapping[str, Any]],
    consumers: Sequence[Mapping[str, Any]],
    *,
    complete: bool,
) -> RunConfiguration:
    """What the head of one run tells.

    Raises:
        ValueError: a group that comes twice, or a setting that does not exist.
    """
    run = RunConfiguration(
        producers=[_settings(ProducerSettings, one) for one in producers],
        consumers=[_settings(ConsumerSettings, one) for one in consumers],
        complete=complete,
    )
    check_run(run_id, run)
    return run


def _settings(kind: type[S], given: Mapping[str, Any]) -> S:
    return kind(**{one.name: given[one.name] for one in fields(kind) if one.name in given})
