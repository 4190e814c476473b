"""The settings of topics, by Kafka's names: which there are, what they may be, their defaults.

A setting that Kafka has and this cluster does not follow is refused, rather than taken and ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from purgatory.broker.errors import ClusterError
from purgatory.kafka import LogConfig


class Setting(NamedTuple):
    """One setting.

    Args:
        default: as text; None stands for the cluster's own.
        kind: Kafka's number of its type: 1 boolean, 2 string, 3 int, 5 long, 7 list.
        least: the least number that it may be, for numbers.
        choices: what it may be, for words.
        doc: what it does.
    """

    default: str | None
    kind: int
    least: int | None = None
    choices: tuple[str, ...] = ()
    doc: str = ""


_INT, _LONG, _LIST = 3, 5, 7

SETTINGS: Mapping[str, Setting] = {
    "cleanup.policy": Setting(
        "delete", _LIST, choices=("delete", "compact"), doc="What becomes of old records."
    ),
    "max.message.bytes": Setting(
        "1048588", _INT, least=1, doc="The largest record batch that is taken."
    ),
    "min.insync.replicas": Setting(
        None, _INT, least=1, doc="How many replicas must be in sync for acks=all."
    ),
    "retention.bytes": Setting(
        "-1", _LONG, least=-1, doc="How much of a partition is kept; -1 keeps all."
    ),
    "retention.ms": Setting(
        "-1", _LONG, least=-1, doc="How long records are kept, in milliseconds; -1 keeps all."
    ),
    "segment.bytes": Setting(
        "1073741824", _INT, least=14, doc="How large a segment grows before the next is begun."
    ),
}


def checked_settings(settings: Mapping[str, str | None]) -> dict[str, str]:
    """Return the settings that were given, checked.

    Raises:
        ClusterError: an unknown one, or a value that it can't have.
    """
    checked = {}
    for name, value in settings.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise ClusterError(
                f"the setting {name!r} is not followed here; known are {', '.join(SETTINGS)}"
            )
        if value is not None:
            _check_value(name, setting, value)
            checked[name] = value
    return checked


def _check_value(name: str, setting: Setting, value: str) -> None:
    if setting.choices:
        if not set(value.split(",")) <= set(setting.choices):
            raise ClusterError(f"{name}={value}: it is one of {', '.join(setting.choices)}")
        return
    try:
        number = int(value)
    except ValueError:
        raise ClusterError(f"{name}={value}: it is a whole number") from None
    if setting.least is not None and number < setting.least:
        raise ClusterError(f"{name}={value}: it is at least {setting.least}")


def value_of(
    settings: Mapping[str, str], name: str, of_cluster: Callable[[str], str | None]
) -> str:
    """Return what holds for a topic: its own, else the cluster's, else the default."""
    own = settings.get(name)
    if own is not None:
        return own
    return of_cluster(name) or SETTINGS[name].default or ""


def log_config(settings: Mapping[str, str], base: LogConfig) -> LogConfig:
    """Return how the logs of a topic with these settings are kept."""
    retention_bytes = int(settings.get("retention.bytes", "-1"))
    return LogConfig(
        segment_bytes=int(settings.get("segment.bytes", base.segment_bytes)),
        retention_bytes=base.retention_bytes if retention_bytes < 0 else retention_bytes,
        max_batch_bytes=int(settings.get("max.message.bytes", base.max_batch_bytes)),
    )
