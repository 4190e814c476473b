"""Which settings of a topic go together, where the remote tier is concerned: Kafka's rules."""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.topic_settings import OfBroker, value_of

TIER_ENABLED = "remote.log.storage.system.enable"
"""What brokers call it that there is a remote tier."""

_UNLIMITED, _AS_ALL = -1, -2


def is_tiered(settings: Mapping[str, str], of_broker: OfBroker) -> bool:
    """Whether a topic with these settings is in the remote tier."""
    return value_of(settings, "remote.storage.enable", of_broker).lower() == "true"


def check_tiering(
    settings: Mapping[str, str], of_broker: OfBroker, former: Mapping[str, str] | None = None
) -> None:
    """Refuse settings that Kafka refuses together.

    Args:
        settings: that a topic is to have.
        of_broker: what holds where they say nothing.
        former: that it had; None for a new topic.

    Raises:
        KafkaError: INVALID_CONFIG.
    """
    if not is_tiered(settings, of_broker):
        deletes = value_of(settings, "remote.log.delete.on.disable", of_broker).lower() == "true"
        if former is not None and is_tiered(former, of_broker) and not deletes:
            raise _refused(
                "remote.storage.enable=false: set remote.log.delete.on.disable=true with it, which "
                "deletes what is in the remote tier; remote.log.copy.disable=true keeps it, and "
                "copies no more"
            )
        return
    if of_broker(TIER_ENABLED) is None:
        raise _refused("remote.storage.enable=true: this cluster has no remote tier")
    if "compact" in value_of(settings, "cleanup.policy", of_broker).split(","):
        raise _refused("remote.storage.enable=true: a compacted topic can't be in the remote tier")
    for unit in ("ms", "bytes"):
        of_all = int(value_of(settings, f"retention.{unit}", of_broker))
        of_local = int(value_of(settings, f"local.retention.{unit}", of_broker))
        if of_all != _UNLIMITED and of_local != _AS_ALL and not 0 <= of_local <= of_all:
            raise _refused(
                f"local.retention.{unit}={of_local}: it is from 0 to retention.{unit}, which is "
                f"{of_all}, or -2: as long as that"
            )


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, message)
