"""The features of a cluster, as Kafka 4.3 has them: supported and finalized levels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from purgatory.kafka.errors import ErrorCode, KafkaError

ELIGIBLE_LEADERS, METADATA = "eligible.leader.replicas.version", "metadata.version"
GROUPS, SHARES, STREAMS = "group.version", "share.version", "streams.version"
TRANSACTIONS = "transaction.version"


class Feature(NamedTuple):
    """The supported levels of a feature, and that of a new cluster; at 0 it is off."""

    least: int
    most: int
    level: int


FEATURES: Mapping[str, Feature] = {
    ELIGIBLE_LEADERS: Feature(0, 1, 1),
    GROUPS: Feature(0, 1, 1),
    "kraft.version": Feature(0, 1, 0),
    METADATA: Feature(7, 30, 30),
    SHARES: Feature(0, 1, 1),
    STREAMS: Feature(0, 1, 1),
    # Transactions by KIP-890: leaders add partitions, and each end raises the epoch.
    TRANSACTIONS: Feature(0, 2, 2),
}

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def check_update(
    features: Mapping[str, Feature], name: str, now: int, level: int, upgrade_type: int
) -> None:
    """Check the change of a feature's level.

    Args:
        features: those that there are.
        name: of the feature.
        now, level: the present level, and the requested one.
        upgrade_type: UPGRADE, SAFE_DOWNGRADE or UNSAFE_DOWNGRADE.

    Raises:
        KafkaError: INVALID_UPDATE_VERSION.
    """
    reason, feature = None, features.get(name)
    if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        reason = f"there is no upgrade type {upgrade_type}"
    elif feature is None:
        reason = f"there is no such feature; there are {', '.join(features) or 'none'}"
    elif not feature.least <= level <= feature.most:
        reason = f"its levels are {feature.least} to {feature.most}"
    elif level < now and upgrade_type == UPGRADE:
        reason = f"it is {now}: a lower level takes the upgrade type of a downgrade"
    elif name == METADATA and level < now:
        reason = f"it is {now}: a lower level might lose metadata"
    elif level > now and upgrade_type != UPGRADE:
        reason = f"it is {now}: a downgrade can't raise it"
    if reason is not None:
        message = f"Invalid update version {level} for feature {name}. {reason}"
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
