"""The settings of librdkafka: the options that begin with "kafka.", or those of a command line."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Consumer, KafkaException

from purgatory.source.errors import OptionError

_PREFIX = "kafka."
_SERVERS = "bootstrap.servers"
_IN_JAVA_ONLY = {
    "sasl.jaas.config": "give {0}sasl.username and {0}sasl.password",
    "ssl.truststore.location": "give {0}ssl.ca.location, a file of PEM",
    "ssl.truststore.password": "give {0}ssl.ca.location, a file of PEM",
    "ssl.truststore.type": "give {0}ssl.ca.location, a file of PEM",
    "ssl.keystore.type": "give {0}ssl.certificate.location and {0}ssl.key.location",
    "key.deserializer": "leave it out: keys come as bytes",
    "value.deserializer": "leave it out: values come as bytes",
}
_OURS = {
    "auto.offset.reset": "leave it out: startingOffsets and failOnDataLoss say it in a query",
    "enable.auto.commit": "leave it out: offsets are kept in the checkpoint",
    "enable.auto.offset.store": "leave it out: offsets are kept in the checkpoint",
    "enable.partition.eof": "leave it out: the source needs it",
}
# A broker's death mostly costs the wait until the next attempt: 10 s at most by default.
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
    return consumer_settings(
        {
            key.lower().removeprefix(_PREFIX): str(value)
            for key, value in options.items()
            if key.lower().startswith(_PREFIX)
        },
        _PREFIX,
    )


def consumer_settings(settings: Mapping[str, str], before: str = "") -> dict[str, str]:
    """Return the settings for a consumer, with those that it always has.

    Args:
        settings: settings by librdkafka's names.
        before: the prefix of the given names, for errors.

    Raises:
        OptionError: no servers, or a setting that librdkafka does not know or that is not free.
    """
    if not settings.get(_SERVERS, "").strip():
        raise OptionError(f"{before}bootstrap.servers is missing: give HOST:PORT,HOST:PORT")
    for name in settings:
        right = _IN_JAVA_ONLY.get(name) or _OURS.get(name)
        if right is not None:
            raise OptionError(f"{before}{name} can't be given here: {right.format(before)}")
    # A consumer must name a group; it never joins it.
    group = {"group.id": f"purgatory-source-{uuid.uuid4()}"}
    settings = {**_DEFAULTS, **group, **settings, **_OWN_SETTINGS}
    _check(settings, before)
    return settings


def _check(settings: Mapping[str, str], before: str) -> None:
    """Let librdkafka look at the settings, without waiting for a connection."""
    for name, value in settings.items():
        # librdkafka reports a missing file only as a failed call into OpenSSL.
        if name.endswith(".location") and not Path(value).exists():
            raise OptionError(f"{before}{name}={value!r}: there is no such file")
    try:
        Consumer(dict(settings)).close()
    except (KafkaException, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        where = f"{before}*: " if before else ""
        raise OptionError(
            f"{where}{reason}: names and values are librdkafka's, see its CONFIGURATION.md"
        ) from None
