"""The settings of librdkafka, from the options that begin with "kafka."."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Consumer, KafkaException

from purgatory.client.errors import OptionError

_PREFIX = "kafka."
_SERVERS = "bootstrap.servers"
_IN_JAVA_ONLY = {
    "sasl.jaas.config": "give kafka.sasl.username and kafka.sasl.password",
    "ssl.truststore.location": "give kafka.ssl.ca.location, a file of PEM",
    "ssl.truststore.password": "give kafka.ssl.ca.location, a file of PEM",
    "ssl.truststore.type": "give kafka.ssl.ca.location, a file of PEM",
    "ssl.keystore.type": "give kafka.ssl.certificate.location and kafka.ssl.key.location",
    "key.deserializer": "leave it out: keys come as bytes",
    "value.deserializer": "leave it out: values come as bytes",
}
_OURS = {
    "auto.offset.reset": "leave it out, and give startingOffsets and failOnDataLoss",
    "enable.auto.commit": "leave it out: offsets are kept in the checkpoint",
    "enable.auto.offset.store": "leave it out: offsets are kept in the checkpoint",
    "enable.partition.eof": "leave it out: the source needs it",
}
# What a broker's death costs is mostly waiting until the next attempt: 10 s at most by default.
_OWN_SETTINGS = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
}
_DEFAULTS = {"reconnect.backoff.max.ms": "1000", "allow.auto.create.topics": "false"}


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for a consumer.

    Args:
        options: all options of the query.

    Raises:
        OptionError: no servers, or a setting that librdkafka does not know or that is not free.
    """
    given = {
        key.lower().removeprefix(_PREFIX): str(value)
        for key, value in options.items()
        if key.lower().startswith(_PREFIX)
    }
    if not given.get(_SERVERS, "").strip():
        raise OptionError("kafka.bootstrap.servers is missing: give HOST:PORT,HOST:PORT")
    for name in given:
        right = _IN_JAVA_ONLY.get(name) or _OURS.get(name)
        if right is not None:
            raise OptionError(f"kafka.{name} can't be given here: {right}")
    # A consumer must name a group; it never joins it.
    group = {"group.id": f"purgatory-source-{uuid.uuid4()}"}
    settings = {**_DEFAULTS, **group, **given, **_OWN_SETTINGS}
    _check(settings)
    return settings


def _check(settings: Mapping[str, str]) -> None:
    """Let librdkafka look at the settings, without waiting for a connection."""
    for name, value in settings.items():
        # What librdkafka says of a missing file is only that a call into OpenSSL failed.
        if name.endswith(".location") and not Path(value).exists():
            raise OptionError(f"kafka.{name}={value!r}: there is no such file")
    try:
        Consumer(dict(settings)).close()
    except (KafkaException, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise OptionError(
            f"kafka.*: {reason}: the names and values after kafka. are librdkafka's, "
            "see its CONFIGURATION.md"
        ) from None
