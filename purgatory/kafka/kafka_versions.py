"""Older Kafkas: the newest version of each API, the features and the defaults of a release.

The numbers are those of brokers with released schemas: of the last 0.11, 1.1, 2.0, 2.8, 3.0 (with
ZooKeeper), 3.9 and 4.0 (KRaft). APIs of brokers alone are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.kafka.features import FEATURES, METADATA, TRANSACTIONS, Feature

NEWEST_KAFKA = "4.3"
"""The Kafka that a cluster is without a setting."""

OLDER_KAFKAS = ("0.11", "1.1", "2.0", "2.8", "3.0", "3.9", "4.0")
KAFKA_VERSIONS = (*OLDER_KAFKAS, NEWEST_KAFKA)

NO_VERSION = -1
_NEWEST_VERSIONS: Mapping[int, tuple[int, ...]] = {
    0: (3, 5, 6, 9, 9, 11, 12),  # produce
    1: (5, 7, 8, 12, 12, 17, 17),  # fetch
    2: (2, 2, 3, 6, 7, 9, 10),  # list_offsets
    3: (4, 5, 6, 11, 11, 12, 13),  # metadata
    8: (3, 3, 4, 8, 8, 9, 9),  # offset_commit
    9: (3, 3, 4, 7, 8, 9, 9),  # offset_fetch
    10: (1, 1, 2, 3, 4, 6, 6),  # find_coordinator
    11: (2, 2, 3, 7, 7, 9, 9),  # join_group
    12: (1, 1, 2, 4, 4, 4, 4),  # heartbeat
    13: (1, 1, 2, 4, 4, 5, 5),  # leave_group
    14: (1, 1, 2, 5, 5, 5, 5),  # sync_group
    15: (1, 1, 2, 5, 5, 5, 6),  # describe_groups
    16: (1, 1, 2, 4, 4, 5, 5),  # list_groups
    17: (0, 1, 1, 1, 1, 1, 1),  # sasl_handshake
    18: (1, 1, 2, 3, 3, 4, 4),  # api_versions
    19: (2, 2, 3, 7, 7, 7, 7),  # create_topics
    20: (1, 1, 2, 6, 6, 6, 6),  # delete_topics
    21: (0, 0, 1, 2, 2, 2, 2),  # delete_records
    22: (0, 0, 1, 4, 4, 5, 5),  # init_producer_id
    23: (0, 0, 1, 4, 4, 4, 4),  # offset_for_leader_epoch
    24: (0, 0, 1, 3, 3, 5, 5),  # add_partitions_to_txn
    25: (0, 0, 1, 3, 3, 4, 4),  # add_offsets_to_txn
    26: (0, 0, 1, 3, 3, 4, 5),  # end_txn
    27: (0, 0, 0, 1, 1, 1, 1),  # write_txn_markers
    28: (0, 0, 1, 3, 3, 4, 5),  # txn_offset_commit
    29: (0, 0, 1, 2, 2, 3, 3),  # describe_acls
    30: (0, 0, 1, 2, 2, 3, 3),  # create_acls
    31: (0, 0, 1, 2, 2, 3, 3),  # delete_acls
    32: (0, 1, 2, 4, 4, 4, 4),  # describe_configs
    33: (0, 0, 1, 2, 2, 2, 2),  # alter_configs
    34: (-1, 0, 1, 2, 2, 2, 2),  # alter_replica_log_dirs
    35: (-1, 0, 1, 2, 2, 4, 4),  # describe_log_dirs
    36: (-1, 0, 0, 2, 2, 2, 2),  # sasl_authenticate
    37: (-1, 0, 1, 3, 3, 3, 3),  # create_partitions
    38: (-1, 0, 1, 2, 2, 3, 3),  # create_delegation_token
    39: (-1, 0, 1, 2, 2, 2, 2),  # renew_delegation_token
    40: (-1, 0, 1, 2, 2, 2, 2),  # expire_delegation_token
    41: (-1, 0, 1, 2, 2, 3, 3),  # describe_delegation_token
    42: (-1, 0, 1, 2, 2, 2, 2),  # delete_groups
    43: (-1, -1, -1, 2, 2, 2, 2),  # elect_leaders
    44: (-1, -1, -1, 1, 1, 1, 1),  # incremental_alter_configs
    45: (-1, -1, -1, 0, 0, 0, 0),  # alter_partition_reassignments
    46: (-1, -1, -1, 0, 0, 0, 0),  # list_partition_reassignments
    47: (-1, -1, -1, 0, 0, 0, 0),  # offset_delete
    48: (-1, -1, -1, 1, 1, 1, 1),  # describe_client_quotas
    49: (-1, -1, -1, 1, 1, 1, 1),  # alter_client_quotas
    50: (-1, -1, -1, 0, 0, 0, 0),  # describe_user_scram_credentials
    51: (-1, -1, -1, 0, 0, 0, 0),  # alter_user_scram_credentials
    55: (-1, -1, -1, -1, -1, 2, 2),  # describe_quorum
    57: (-1, -1, -1, 0, 0, 1, 2),  # update_features
    60: (-1, -1, -1, 0, 0, 1, 2),  # describe_cluster
    61: (-1, -1, -1, 0, 0, 0, 0),  # describe_producers
    64: (-1, -1, -1, -1, -1, 0, 0),  # unregister_broker
    65: (-1, -1, -1, -1, 0, 0, 0),  # describe_transactions
    66: (-1, -1, -1, -1, 0, 1, 1),  # list_transactions
    68: (-1, -1, -1, -1, -1, 0, 1),  # consumer_group_heartbeat
    69: (-1, -1, -1, -1, -1, 0, 1),  # consumer_group_describe
    74: (-1, -1, -1, -1, -1, 0, 0),  # list_config_resources
    75: (-1, -1, -1, -1, -1, 0, 0),  # describe_topic_partitions
    76: (-1, -1, -1, -1, -1, -1, -1),  # share_group_heartbeat
    77: (-1, -1, -1, -1, -1, -1, -1),  # share_group_describe
    78: (-1, -1, -1, -1, -1, -1, -1),  # share_fetch
    79: (-1, -1, -1, -1, -1, -1, -1),  # share_acknowledge
    80: (-1, -1, -1, -1, -1, 0, 0),  # add_raft_voter
    81: (-1, -1, -1, -1, -1, 0, 0),  # remove_raft_voter
    83: (-1, -1, -1, -1, -1, -1, -1),  # initialize_share_group_state
    84: (-1, -1, -1, -1, -1, -1, -1),  # read_share_group_state
    85: (-1, -1, -1, -1, -1, -1, -1),  # write_share_group_state
    86: (-1, -1, -1, -1, -1, -1, -1),  # delete_share_group_state
    87: (-1, -1, -1, -1, -1, -1, -1),  # read_share_group_state_summary
    88: (-1, -1, -1, -1, -1, -1, -1),  # streams_group_heartbeat
    89: (-1, -1, -1, -1, -1, -1, -1),  # streams_group_describe
    90: (-1, -1, -1, -1, -1, -1, -1),  # describe_share_group_offsets
    91: (-1, -1, -1, -1, -1, -1, -1),  # alter_share_group_offsets
    92: (-1, -1, -1, -1, -1, -1, -1),  # delete_share_group_offsets
}
"""By API: its newest version in each of `OLDER_KAFKAS`; -1: it has none, or none for clients."""

_WITHOUT_CONSUMER_PROTOCOL: Mapping[str, frozenset[int]] = {"3.9": frozenset({68, 69})}
"""APIs that are served, and refused: 3.9 has the new protocol of consumers switched off."""

_NAMES_OWN_VERSIONS_SINCE = "2.8"
"""From 2.4 on, the answer to an unknown version of ApiVersions has those of ApiVersions."""

_LAST_WITH_ZOOKEEPER = "3.0"
_APIS_OF_CONTROLLERS = frozenset({19, 20, 37, 43, 45, 46, 57})
"""CreateTopics, DeleteTopics, CreatePartitions, ElectLeaders, AlterPartitionReassignments,
ListPartitionReassignments, UpdateFeatures: from KRaft on, any broker forwards them."""

_NO_FEATURES: Mapping[str, Feature] = {}
_KRAFT = "kraft.version"
_FEATURES: Mapping[str, Mapping[str, Feature]] = {
    "3.9": {_KRAFT: Feature(0, 1, 0), METADATA: Feature(1, 21, 21)},
    "4.0": {
        **{name: FEATURES[name] for name in ("group.version", _KRAFT, TRANSACTIONS)},
        "eligible.leader.replicas.version": Feature(0, 1, 0),
        METADATA: Feature(7, 25, 25),
    },
}

_DEFAULTS: Mapping[str, tuple[str, str]] = {
    # 1,048,588 since 2.5, and an hour since 4.0.
    "max.message.bytes": ("2.0", "1000012"),
    "message.timestamp.after.max.ms": ("3.9", str(2**63 - 1)),
}
"""Topics' settings with another default: up to which of these Kafkas, and its value."""


def newest_version(kafka_version: str, api_key: int) -> int:
    """Return the newest version of an API that a Kafka before the newest one has; or -1."""
    versions = _NEWEST_VERSIONS.get(api_key)
    return NO_VERSION if versions is None else versions[OLDER_KAFKAS.index(kafka_version)]


def refused_apis(kafka_version: str) -> frozenset[int]:
    """Return the APIs to which a Kafka responds with UNSUPPORTED_VERSION."""
    return _WITHOUT_CONSUMER_PROTOCOL.get(kafka_version, frozenset())


def names_own_versions(kafka_version: str) -> bool:
    """Whether the answer to an unknown version of ApiVersions has those that are known."""
    return _is_since(kafka_version, _NAMES_OWN_VERSIONS_SINCE)


def is_for_controller(kafka_version: str, api_key: int) -> bool:
    """Whether other brokers than the controller refuse an API."""
    return api_key in _APIS_OF_CONTROLLERS and _is_since(_LAST_WITH_ZOOKEEPER, kafka_version)


def features_of(kafka_version: str) -> Mapping[str, Feature]:
    """Return the features of a Kafka; those with ZooKeeper have none."""
    if kafka_version == NEWEST_KAFKA:
        return FEATURES
    return _FEATURES.get(kafka_version, _NO_FEATURES)


def former_default(kafka_version: str, setting: str) -> str | None:
    """Return the default of a topic's setting, where it is another than in the newest Kafka."""
    last, value = _DEFAULTS.get(setting, (None, None))
    if last is None or kafka_version not in KAFKA_VERSIONS or not _is_since(last, kafka_version):
        return None
    return value


def _is_since(kafka_version: str, first: str) -> bool:
    return KAFKA_VERSIONS.index(kafka_version) >= KAFKA_VERSIONS.index(first)
