"""The settings of topics, by Kafka's names: their types, defaults and bounds.

A value that the cluster would ignore is rejected: a setting that isn't implemented accepts only the
value that describes what the cluster does. Settings that could affect nothing here (there is no
index on disk) have any value that Kafka allows.

The effective value is the topic's own, else its broker's, else the default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.log.log import CODECS, LogConfig
from purgatory.kafka.settings.setting import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    SHORT,
    STRING,
    Setting,
)
from purgatory.kafka.settings.unused_settings import UNUSED_DYNAMIC
from purgatory.settings.problems import known_names
from timer.durations import checked_ms

BrokerSetting = Callable[[str], str | None]
"""Returns a broker's own value of a topic setting, or None."""

NEVER = str(2**63 - 1)
"""Kafka's text for a time that never comes, and for a number that is never reached."""

_NUMBERS = (INT, SHORT, LONG, DOUBLE)
_APPEND_TIME = "LogAppendTime"
_BOOLEAN_VALUES = ("false", "true")
_PRODUCER = "producer"


def _fixed(value: str, kind: int, of_broker: str | None, doc: str) -> Setting:
    return Setting(value, kind, of_broker, doc, fixed=True)


_NO_TIER = "There is no remote tier: it counts nowhere, as in a Kafka without one."
_NO_FILES = "A log has no such file, index or delay: it counts nowhere."
_NO_THROTTLE = "No replica is throttled: it counts nowhere."
_THROTTLED = r"(\*|none|\d+:\d+(,\d+:\d+)*)?"

_SUPPORTED: Mapping[str, Setting] = {
    "compression.type": Setting(
        _PRODUCER,
        STRING,
        "compression.type",
        "The compression of batches; producer keeps that of the producer.",
        choices=(_PRODUCER, *CODECS),
    ),
    "compression.gzip.level": Setting(
        "-1",
        INT,
        "compression.gzip.level",
        "The compression level of gzip.",
        choices=("-1", *map(str, range(1, 10))),
    ),
    "compression.lz4.level": Setting(
        "9", INT, "compression.lz4.level", "The compression level of lz4.", 1, 17
    ),
    "compression.zstd.level": Setting(
        "3", INT, "compression.zstd.level", "The compression level of zstd.", -131072, 22
    ),
    "cleanup.policy": Setting(
        "delete",
        LIST,
        "log.cleanup.policy",
        "Whether old segments are deleted, or records compacted by key; both, or neither.",
        choices=("delete", "compact"),
    ),
    "flush.messages": Setting(
        NEVER,
        LONG,
        "log.flush.interval.messages",
        "The number of records between two forced flushes to disk; here each batch, or never.",
        1,
    ),
    "flush.ms": Setting(
        NEVER,
        LONG,
        "log.flush.interval.ms",
        "The time between two forced flushes to disk; here after each batch, or never.",
        0,
    ),
    "max.message.bytes": Setting(
        "1048588", INT, "message.max.bytes", "The largest record batch allowed.", least=0
    ),
    "message.timestamp.after.max.ms": Setting(
        "3600000",
        LONG,
        "log.message.timestamp.after.max.ms",
        "How far a record's timestamp may be ahead of the broker's time.",
        least=0,
    ),
    "message.timestamp.before.max.ms": Setting(
        NEVER,
        LONG,
        "log.message.timestamp.before.max.ms",
        "How far a record's timestamp may be behind the broker's time.",
        least=0,
    ),
    "message.timestamp.type": Setting(
        "CreateTime",
        STRING,
        "log.message.timestamp.type",
        "Whether timestamps are the producer's, or the leader's at the append.",
        choices=("CreateTime", _APPEND_TIME),
    ),
    "min.insync.replicas": Setting(
        "1",
        INT,
        "min.insync.replicas",
        "How many replicas must be in sync for acks=all.",
        least=1,
    ),
    "retention.bytes": Setting(
        "-1",
        LONG,
        "log.retention.bytes",
        "The size that a partition's log may reach; -1: no limit.",
    ),
    "retention.ms": Setting(
        "604800000",
        LONG,
        "log.retention.ms",
        "How long records are retained, in milliseconds; -1: no limit.",
        least=-1,
    ),
    "delete.retention.ms": Setting(
        "86400000",
        LONG,
        "log.cleaner.delete.retention.ms",
        "How long tombstones are retained after their first compaction.",
        0,
    ),
    "min.cleanable.dirty.ratio": Setting(
        "0.5",
        DOUBLE,
        "log.cleaner.min.cleanable.ratio",
        "The part of a log that must be new for a compaction.",
        0,
        1,
    ),
    "min.compaction.lag.ms": Setting(
        "0",
        LONG,
        "log.cleaner.min.compaction.lag.ms",
        "The least age of records that are compacted.",
        0,
    ),
    "max.compaction.lag.ms": Setting(
        NEVER,
        LONG,
        "log.cleaner.max.compaction.lag.ms",
        "The greatest age of records that are not compacted yet.",
        1,
    ),
    "segment.ms": Setting(
        "604800000", LONG, "log.roll.ms", "The age of a segment after which the log rolls.", 1
    ),
    "unclean.leader.election.enable": Setting(
        "false",
        BOOLEAN,
        "unclean.leader.election.enable",
        "Whether a replica out of sync may lead when no other is alive; records may be lost.",
        choices=_BOOLEAN_VALUES,
    ),
    "segment.bytes": Setting(
        "1073741824",
        INT,
        "log.segment.bytes",
        "The size of a segment at which the log rolls.",
        least=1024 * 1024,
    ),
    "local.retention.bytes": Setting("-2", LONG, "log.local.retention.bytes", _NO_TIER, least=-2),
    "local.retention.ms": Setting("-2", LONG, "log.local.retention.ms", _NO_TIER, least=-2),
    "remote.log.copy.disable": Setting("false", BOOLEAN, None, _NO_TIER, choices=_BOOLEAN_VALUES),
    "remote.log.delete.on.disable": Setting(
        "false", BOOLEAN, None, _NO_TIER, choices=_BOOLEAN_VALUES
    ),
    "preallocate": Setting(
        "false",
        BOOLEAN,
        "log.preallocate",
        "Files grow with what is written, whatever it is.",
        choices=_BOOLEAN_VALUES,
    ),
    "file.delete.delay.ms": Setting("60000", LONG, "log.segment.delete.delay.ms", _NO_FILES, 0),
    "index.interval.bytes": Setting("4096", INT, "log.index.interval.bytes", _NO_FILES, 0),
    "segment.index.bytes": Setting("10485760", INT, "log.index.size.max.bytes", _NO_FILES, 4),
    "segment.jitter.ms": Setting("0", LONG, "log.roll.jitter.ms", _NO_FILES, 0),
    "follower.replication.throttled.replicas": Setting(
        "", LIST, None, _NO_THROTTLE, pattern=_THROTTLED
    ),
    "leader.replication.throttled.replicas": Setting(
        "", LIST, None, _NO_THROTTLE, pattern=_THROTTLED
    ),
}

_FIXED: Mapping[str, Setting] = {
    "remote.storage.enable": _fixed("false", BOOLEAN, None, "There is no remote tier."),
}

SETTINGS: Mapping[str, Setting] = dict(sorted({**_SUPPORTED, **_FIXED}.items()))
"""The settings of topics that are described."""

SMALL_SEGMENTS = "internal.segment.bytes"
TOPIC_SETTINGS: Mapping[str, Setting] = {
    **SETTINGS,
    # As in Kafka, for tests: segments below the least size, and not described.
    SMALL_SEGMENTS: Setting("", INT, None, "The size of a segment, below a MiB, too.", least=14),
}
"""All settings of topics."""

_RELOGIN = "sasl.kerberos.min.time.before.relogin"

BROKER_SETTINGS: Mapping[str, Setting] = {
    **TOPIC_SETTINGS,
    **UNUSED_DYNAMIC,
    **{
        rate: _fixed(NEVER, LONG, rate, "No replica is throttled.")
        for rate in ("follower.replication.throttled.rate", "leader.replication.throttled.rate")
    },
    # The one setting that is accepted without an effect: librdkafka's own tests change it.
    _RELOGIN: Setting("60000", LONG, _RELOGIN, "There is no Kerberos here.", 0),
}
"""The settings of brokers: the defaults of topics, by the brokers' names, and their own."""


def validate_settings(
    settings: Mapping[str, str | timedelta | None], of_broker: BrokerSetting = lambda _: None
) -> dict[str, str]:
    """Return a topic's settings, validated; those in milliseconds may be timedeltas.

    Raises:
        KafkaError: INVALID_CONFIG: an unknown setting, or an invalid value.
    """
    checked = {}
    for name, value in settings.items():
        if name not in TOPIC_SETTINGS:
            raise unknown_setting(name, "topic", SETTINGS)
        if value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} has no value: leave it out")
        if isinstance(value, timedelta):
            if not name.endswith(".ms"):
                error = f"{name}={value!r}: that is for settings in milliseconds, as retention.ms"
                raise KafkaError(ErrorCode.INVALID_CONFIG, error)
            value = str(checked_ms(name, value))  # noqa: PLW2901
        check_value(name, TOPIC_SETTINGS[name], value, effective_value({}, name, of_broker))
        checked[name] = value
    check_together(checked, of_broker)
    return checked


def check_together(settings: Mapping[str, str], of_broker: BrokerSetting) -> None:
    """Check that a topic's settings go together.

    Raises:
        KafkaError: INVALID_CONFIG.
    """
    least, most = "min.compaction.lag.ms", "max.compaction.lag.ms"
    least_ms, most_ms = (int(effective_value(settings, name, of_broker)) for name in (least, most))
    if least_ms > most_ms:
        error = f"{least}={least_ms}: it is at most {most}, which is {most_ms}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, error)


def unknown_setting(name: str, resource: str, known: Iterable[str]) -> KafkaError:
    """Return the error for an unknown setting, which begins as Kafka's."""
    code, begin = ErrorCode.INVALID_CONFIG, f"Unknown {resource} config name"
    if resource == "client metrics":
        code, begin = ErrorCode.INVALID_REQUEST, "Unknown client metrics configuration"
    return KafkaError(code, f"{begin}: {name}; {known_names(name, known)}")


def check_value(name: str, setting: Setting, value: str, fixed_value: str) -> None:
    """Check the value of a setting.

    Args:
        name: of the setting.
        setting: its definition.
        value: as text.
        fixed_value: the only value of a fixed setting.

    Raises:
        KafkaError: INVALID_CONFIG.
    """
    error = _value_error(setting, value, fixed_value)
    if error is not None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}={value}: {error}")


def _value_error(setting: Setting, value: str, fixed_value: str) -> str | None:
    if setting.fixed:
        normalized = value.lower() if setting.kind == BOOLEAN else value
        if normalized != fixed_value:
            return f"here it is {fixed_value!r} and nothing else. {setting.doc.rstrip('.')}"
    elif setting.kind in _NUMBERS and not setting.choices:
        return _number_error(setting, value)
    elif setting.choices and not set(_words(setting, value)) <= set(setting.choices):
        return f"it is one of {', '.join(setting.choices)}"
    elif setting.pattern and not re.fullmatch(setting.pattern, value.replace(" ", "")):
        return "it is *, or pairs of a partition and a broker: 0:1,1:2"
    return None


def _words(setting: Setting, value: str) -> list[str]:
    if setting.kind == LIST:
        return split_words(value)
    return [value.lower() if setting.kind == BOOLEAN else value]


def split_words(value: str) -> list[str]:
    """Return the words of a list, as Kafka reads it: none of an empty text, without blanks."""
    return re.split(r"\s*,\s*", value.strip()) if value.strip() else []


def _number_error(setting: Setting, value: str) -> str | None:
    is_integer = setting.kind != DOUBLE
    try:
        if "_" in value or not value.isascii():  # which Python accepts
            raise ValueError
        number = int(value) if is_integer else float(value)
    except ValueError:
        return f"it is a {'whole ' * is_integer}number"
    most = setting.most
    if most is None:
        most = 2**31 - 1 if setting.kind == INT else 2**63 - 1
    if setting.least is not None and not number >= setting.least:
        return f"it is at least {setting.least}"
    return f"it is at most {most}" if number > most else None


def effective_value(settings: Mapping[str, str], name: str, of_broker: BrokerSetting) -> str:
    """Return a topic's effective value: its own, else the broker's, else the default."""
    own = settings.get(name)
    if own is not None:
        return own
    default = of_broker(name)
    return (BROKER_SETTINGS[name].default or "") if default is None else default


def log_config(settings: Mapping[str, str], of_broker: BrokerSetting) -> LogConfig:
    """Return the log config of a topic with these settings on a broker."""

    def value(name: str) -> str:
        return effective_value(settings, name, of_broker)

    def limit(name: str) -> int | None:
        number = int(value(name))
        return number if 0 <= number < int(NEVER) else None

    policy = split_words(value("cleanup.policy"))
    compression = value("compression.type")
    level = f"compression.{compression}.level"
    most_lag_ms = limit("max.compaction.lag.ms")
    segment_ms = limit("segment.ms")
    if "compact" in policy and most_lag_ms is not None:
        # The records of the active segment are compacted only once it is closed.
        segment_ms = most_lag_ms if segment_ms is None else min(segment_ms, most_lag_ms)
    return LogConfig(
        segment_bytes=int(value(SMALL_SEGMENTS) or value("segment.bytes")),
        retention_bytes=limit("retention.bytes"),
        max_batch_bytes=max(1, int(value("max.message.bytes"))),
        retention_ms=limit("retention.ms"),
        deletes="delete" in policy,
        compacts="compact" in policy,
        is_log_append_time=value("message.timestamp.type") == _APPEND_TIME,
        forces=limit("flush.messages") is not None or limit("flush.ms") is not None,
        timestamp_before_max_ms=limit("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=limit("message.timestamp.after.max.ms"),
        segment_ms=segment_ms,
        min_dirty_ratio=float(value("min.cleanable.dirty.ratio")),
        min_compaction_lag_ms=int(value("min.compaction.lag.ms")),
        max_compaction_lag_ms=most_lag_ms,
        delete_retention_ms=int(value("delete.retention.ms")),
        codec=None if compression == _PRODUCER else CODECS.index(compression),
        codec_level=int(value(level)) if level in SETTINGS else None,
    )


def settings_of_log(config: LogConfig) -> dict[str, str]:
    """Return a log config's differences from Kafka's defaults, as topic settings."""
    policy = ["compact"] * config.compacts + ["delete"] * config.deletes
    least = SETTINGS["segment.bytes"].least or 0
    is_small = config.segment_bytes < least
    numbers = {
        SMALL_SEGMENTS if is_small else "segment.bytes": config.segment_bytes,
        "retention.bytes": config.retention_bytes,
        "max.message.bytes": config.max_batch_bytes,
        "retention.ms": config.retention_ms,
        "message.timestamp.before.max.ms": config.timestamp_before_max_ms,
        "message.timestamp.after.max.ms": config.timestamp_after_max_ms,
        "segment.ms": config.segment_ms,
        "min.cleanable.dirty.ratio": config.min_dirty_ratio,
        "min.compaction.lag.ms": config.min_compaction_lag_ms,
        "max.compaction.lag.ms": config.max_compaction_lag_ms,
        "delete.retention.ms": config.delete_retention_ms,
    }
    settings = {
        name: (("-1" if name.startswith("retention") else NEVER) if number is None else str(number))
        for name, number in numbers.items()
    }
    if config.forces:
        settings["flush.messages"] = "1"
    settings["cleanup.policy"] = ",".join(policy)
    if config.codec is not None and config.codec in range(len(CODECS)):
        settings["compression.type"] = codec = CODECS[config.codec]
        level = f"compression.{codec}.level"
        if config.codec_level is not None and level in SETTINGS:
            settings[level] = str(config.codec_level)
    settings["message.timestamp.type"] = _APPEND_TIME if config.is_log_append_time else "CreateTime"
    return {
        name: value for name, value in settings.items() if value != TOPIC_SETTINGS[name].default
    }
