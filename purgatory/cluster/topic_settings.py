"""The settings of topics, by Kafka's names: which there are, what they may be, their defaults.

A value is taken where it is what the cluster does, and refused where the cluster would ignore it.
So a setting that isn't followed may have one value: that which the cluster has. Where there is
nothing that a setting could be about (no index, no compaction that could come too early), any value
is kept to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from purgatory.kafka import LogConfig
from purgatory.kafka.errors import ClusterError

OfCluster = Callable[[str], str | None]
"""Returns what the cluster has of its own for a setting, or None."""

NEVER = str(2**63 - 1)
"""How Kafka writes a time that never comes, and a number that is never reached."""

_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7
_NUMBERS = (_INT, _LONG, _DOUBLE)


class Setting(NamedTuple):
    """One setting.

    Args:
        default: as text; None stands for the cluster's own.
        kind: Kafka's number of its type: 1 boolean, 2 string, 3 int, 5 long, 6 double, 7 list.
        of_broker: what its default is called among a broker's settings; None: it has none there.
        doc: what it does.
        least, most: the least and the greatest number that it may be, for numbers.
        choices: what it may be, for words.
        fixed: whether it may only be what it is already.
    """

    default: str | None
    kind: int
    of_broker: str | None
    doc: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    fixed: bool = False


def _fixed(value: str, kind: int, of_broker: str | None, doc: str) -> Setting:
    return Setting(value, kind, of_broker, doc, fixed=True)


_FOLLOWED: Mapping[str, Setting] = {
    "cleanup.policy": Setting(
        "delete",
        _LIST,
        "log.cleanup.policy",
        "What becomes of old records; nothing is compacted, a compacted topic keeps all.",
        choices=("delete", "compact"),
    ),
    "max.message.bytes": Setting(
        "1048588", _INT, "message.max.bytes", "The largest record batch that is taken.", least=1
    ),
    "min.insync.replicas": Setting(
        None,
        _INT,
        "min.insync.replicas",
        "How many replicas must be in sync for acks=all.",
        least=1,
    ),
    "retention.bytes": Setting(
        "-1",
        _LONG,
        "log.retention.bytes",
        "How much of a partition is kept; -1 keeps all.",
        least=-1,
    ),
    "retention.ms": Setting(
        "-1",
        _LONG,
        "log.retention.ms",
        "How long records are kept, in milliseconds; -1 keeps all.",
        least=-1,
    ),
    "segment.bytes": Setting(
        "1073741824",
        _INT,
        "log.segment.bytes",
        "How large a segment grows before the next is begun.",
        least=14,
    ),
}

_AS_IT_IS: Mapping[str, Setting] = {
    "compression.type": _fixed(
        "producer", _STRING, "compression.type", "Batches are kept as the producer compressed them."
    ),
    "file.delete.delay.ms": _fixed(
        "0", _LONG, "log.segment.delete.delay.ms", "Files go at once; their readers read on."
    ),
    "flush.messages": _fixed(
        NEVER,
        _LONG,
        "log.flush.interval.messages",
        "How many records are forced onto the disk together; --fsync always forces each batch.",
    ),
    "flush.ms": _fixed(
        NEVER, _LONG, "log.flush.interval.ms", "Nothing is forced onto the disk by time."
    ),
    "follower.replication.throttled.replicas": _fixed(
        "", _LIST, None, "No replication is throttled."
    ),
    "leader.replication.throttled.replicas": _fixed(
        "", _LIST, None, "No replication is throttled."
    ),
    "local.retention.bytes": _fixed(
        "-2", _LONG, "log.local.retention.bytes", "As retention.bytes: nothing is kept elsewhere."
    ),
    "local.retention.ms": _fixed(
        "-2", _LONG, "log.local.retention.ms", "As retention.ms: nothing is kept elsewhere."
    ),
    "max.compaction.lag.ms": _fixed(
        NEVER, _LONG, "log.cleaner.max.compaction.lag.ms", "Nothing is compacted."
    ),
    "message.downconversion.enable": _fixed(
        "false", _BOOLEAN, "log.message.downconversion.enable", "Format 2 alone is served."
    ),
    "message.format.version": _fixed(
        "3.0-IV1", _STRING, "log.message.format.version", "Format 2 alone is kept, as since 3.0."
    ),
    "message.timestamp.after.max.ms": _fixed(
        NEVER, _LONG, "log.message.timestamp.after.max.ms", "Records may be of any time."
    ),
    "message.timestamp.before.max.ms": _fixed(
        NEVER, _LONG, "log.message.timestamp.before.max.ms", "Records may be of any time."
    ),
    "message.timestamp.difference.max.ms": _fixed(
        NEVER, _LONG, "log.message.timestamp.difference.max.ms", "Records may be of any time."
    ),
    "message.timestamp.type": _fixed(
        "CreateTime", _STRING, "log.message.timestamp.type", "Times are the producer's."
    ),
    "preallocate": _fixed("false", _BOOLEAN, "log.preallocate", "Files grow with what is written."),
    "remote.log.copy.disable": _fixed("false", _BOOLEAN, None, "There is no remote storage."),
    "remote.log.delete.on.disable": _fixed("false", _BOOLEAN, None, "There is no remote storage."),
    "remote.storage.enable": _fixed("false", _BOOLEAN, None, "There is no remote storage."),
    "segment.ms": _fixed(NEVER, _LONG, "log.roll.ms", "Segments are not begun by time."),
    "unclean.leader.election.enable": _fixed(
        "false",
        _BOOLEAN,
        "unclean.leader.election.enable",
        "A replica out of sync does not lead while one in sync may come back.",
    ),
}

_NOTHING_TO_BE_ABOUT: Mapping[str, Setting] = {
    "compression.gzip.level": Setting(
        "-1", _INT, "compression.gzip.level", "Nothing is compressed here.", -1, 9
    ),
    "compression.lz4.level": Setting(
        "9", _INT, "compression.lz4.level", "Nothing is compressed here.", 1, 17
    ),
    "compression.zstd.level": Setting(
        "3", _INT, "compression.zstd.level", "Nothing is compressed here.", -131072, 22
    ),
    "delete.retention.ms": Setting(
        "86400000",
        _LONG,
        "log.cleaner.delete.retention.ms",
        "How long records without a value are kept at least; they are kept for ever.",
        0,
    ),
    "index.interval.bytes": Setting(
        "4096", _INT, "log.index.interval.bytes", "There is no index on disk.", 0
    ),
    "min.cleanable.dirty.ratio": Setting(
        "0.5", _DOUBLE, "log.cleaner.min.cleanable.ratio", "Nothing is compacted.", 0, 1
    ),
    "min.compaction.lag.ms": Setting(
        "0",
        _LONG,
        "log.cleaner.min.compaction.lag.ms",
        "How long records are not compacted at least; they never are.",
        0,
    ),
    "segment.index.bytes": Setting(
        "10485760", _INT, "log.index.size.max.bytes", "There is no index on disk.", 4
    ),
    "segment.jitter.ms": Setting(
        "0", _LONG, "log.roll.jitter.ms", "Segments are not begun by time.", 0
    ),
}

SETTINGS: Mapping[str, Setting] = dict(
    sorted({**_FOLLOWED, **_AS_IT_IS, **_NOTHING_TO_BE_ABOUT}.items())
)


def checked_settings(
    settings: Mapping[str, str | None], of_cluster: OfCluster = lambda _: None
) -> dict[str, str]:
    """Return the settings that were given, checked.

    Raises:
        ClusterError: an unknown one, or a value that it can't have.
    """
    checked = {}
    for name, value in settings.items():
        setting = SETTINGS.get(name)
        if setting is None:
            known = ", ".join(SETTINGS)
            raise ClusterError(f"there is no setting {name!r} of topics; there are {known}")
        if value is not None:
            _check_value(name, setting, value, of_cluster)
            checked[name] = value
    return checked


def _check_value(name: str, setting: Setting, value: str, of_cluster: OfCluster) -> None:
    if setting.fixed:
        as_it_is = value_of({}, name, of_cluster)
        given = value.lower() if setting.kind == _BOOLEAN else value
        if given != as_it_is:
            doc = setting.doc.rstrip(".")
            raise ClusterError(f"{name}={value}: here it is {as_it_is!r} and nothing else. {doc}")
    elif setting.kind in _NUMBERS:
        _check_number(name, setting, value)
    elif not set(value.split(",")) <= set(setting.choices):
        raise ClusterError(f"{name}={value}: it is one of {', '.join(setting.choices)}")


def _check_number(name: str, setting: Setting, value: str) -> None:
    whole = setting.kind != _DOUBLE
    try:
        number = int(value) if whole else float(value)
    except ValueError:
        raise ClusterError(f"{name}={value}: it is a {'whole ' * whole}number") from None
    most = setting.most
    if most is None:
        most = 2**31 - 1 if setting.kind == _INT else 2**63 - 1
    if setting.least is not None and not number >= setting.least:
        raise ClusterError(f"{name}={value}: it is at least {setting.least}")
    if number > most:
        raise ClusterError(f"{name}={value}: it is at most {most}")


def value_of(settings: Mapping[str, str], name: str, of_cluster: OfCluster) -> str:
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
