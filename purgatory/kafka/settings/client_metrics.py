"""The settings of subscriptions to clients' metrics (KIP-714): kept and described, never pushed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.settings.alter_configs import ConfigResource
from purgatory.kafka.settings.setting import INT, LIST, Setting
from purgatory.kafka.settings.topic_settings import check_value, split_words

_MATCH = "match"

CLIENT_METRICS_SETTINGS: Mapping[str, Setting] = {
    "interval.ms": Setting(
        "300000", INT, None, "How often a client is to push its metrics.", 100, 3_600_000
    ),
    _MATCH: Setting("", LIST, None, "The clients, as in client_software_name=librdkafka.*"),
    "metrics": Setting("", LIST, None, "The prefixes of the metrics' names; * for all."),
}

_PARAMETERS = {
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
}


def _check(name: str, setting: Setting, value: str, fixed_value: str) -> None:
    try:
        check_value(name, setting, value, fixed_value)
    except KafkaError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from None
    for pattern in split_words(value) if name == _MATCH else ():
        parameter, equals, expression = pattern.partition("=")
        if not equals or parameter.strip() not in _PARAMETERS or not _compiles(expression.strip()):
            known = ", ".join(sorted(_PARAMETERS))
            message = f"{pattern!r}: it is PARAMETER=PATTERN, with one of {known}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _compiles(expression: str) -> bool:
    try:
        re.compile(expression)
    except re.error:
        return False
    return bool(expression)


CLIENT_METRICS_CONFIGS = ConfigResource(
    "client metrics",
    {name: name for name in CLIENT_METRICS_SETTINGS},
    {},
    CLIENT_METRICS_SETTINGS,
    _check,
    lambda settings, of_broker: None,
)
