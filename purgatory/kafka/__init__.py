"""A Kafka broker's decisions: its logs, replicas and groups, and their waits.

A model without I/O, threads and wall clock: time and scheduling come in from outside, so that a
simulation and a network server use the same code.

Ground rules: only one thread, that of the broker's loop, touches a broker's objects. Beyond the
purgatories, which have locks of their own, there are none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purgatory.kafka.errors import ErrorCode, GroupRefusal, KafkaError, TransactionRefusal
    from purgatory.kafka.groups.group import (
        Group,
        GroupState,
        JoinGroupMember,
        JoinGroupRequest,
        JoinGroupResult,
        SyncGroupResult,
    )
    from purgatory.kafka.groups.group_manager import GroupManager
    from purgatory.kafka.groups.offsets import (
        OFFSETS_TOPIC,
        CommittedOffset,
        OffsetEntry,
        OffsetKey,
        OffsetsCodec,
        StoredEntry,
        group_partition,
    )
    from purgatory.kafka.log.fetch_thresholds import FetchIsolation
    from purgatory.kafka.log.leader_epoch_cache import EpochEndOffset, LeaderEpochCache
    from purgatory.kafka.log.log import Log, LogConfig, Segment
    from purgatory.kafka.log.producer_state import (
        AbortedTransaction,
        AppendOrigin,
        ProducerIdentity,
        ProducerStates,
    )
    from purgatory.kafka.log.record_batch import RecordBatch, TransactionResult
    from purgatory.kafka.replication.delayed_delete_records import (
        DelayedDeleteRecords,
        DeleteRecordsCase,
        DeleteRecordsStatus,
    )
    from purgatory.kafka.replication.delayed_fetch import DelayedFetch, FetchCase
    from purgatory.kafka.replication.delayed_produce import (
        DelayedProduce,
        ProduceCase,
        ProduceStatus,
    )
    from purgatory.kafka.replication.partition import LeaderAppend, Partition
    from purgatory.kafka.replication.replica_manager import ReplicaManager
    from purgatory.kafka.replication.requests import (
        FetchParams,
        PartitionDeleteRecordsResponse,
        PartitionFetch,
        PartitionFetchResponse,
        PartitionProduceResponse,
    )
    from purgatory.kafka.settings.group_settings import GroupConfig
    from purgatory.kafka.topic_partition import TopicPartition
    from purgatory.kafka.transactions.transaction_coordinator import TransactionCoordinator
    from purgatory.kafka.transactions.transaction_marker_manager import MarkerChannel, write_markers
    from purgatory.kafka.transactions.transaction_metadata import (
        TRANSACTIONS_TOPIC,
        InitProducerIdResult,
        TransactionConfig,
        TransactionEntry,
        TransactionListing,
        TransactionRecord,
        TransactionsCodec,
        TransactionState,
    )

__all__ = [
    "OFFSETS_TOPIC",
    "TRANSACTIONS_TOPIC",
    "AbortedTransaction",
    "AppendOrigin",
    "CommittedOffset",
    "DelayedDeleteRecords",
    "DelayedFetch",
    "DelayedProduce",
    "DeleteRecordsCase",
    "DeleteRecordsStatus",
    "EpochEndOffset",
    "ErrorCode",
    "FetchCase",
    "FetchIsolation",
    "FetchParams",
    "Group",
    "GroupConfig",
    "GroupManager",
    "GroupRefusal",
    "GroupState",
    "InitProducerIdResult",
    "JoinGroupMember",
    "JoinGroupRequest",
    "JoinGroupResult",
    "KafkaError",
    "LeaderAppend",
    "LeaderEpochCache",
    "Log",
    "LogConfig",
    "MarkerChannel",
    "OffsetEntry",
    "OffsetKey",
    "OffsetsCodec",
    "Partition",
    "PartitionDeleteRecordsResponse",
    "PartitionFetch",
    "PartitionFetchResponse",
    "PartitionProduceResponse",
    "ProduceCase",
    "ProduceStatus",
    "ProducerIdentity",
    "ProducerStates",
    "RecordBatch",
    "ReplicaManager",
    "Segment",
    "StoredEntry",
    "SyncGroupResult",
    "TopicPartition",
    "TransactionConfig",
    "TransactionCoordinator",
    "TransactionEntry",
    "TransactionListing",
    "TransactionRecord",
    "TransactionRefusal",
    "TransactionResult",
    "TransactionState",
    "TransactionsCodec",
    "group_partition",
    "write_markers",
]

_HOMES = {
    "OFFSETS_TOPIC": "groups.offsets",
    "TRANSACTIONS_TOPIC": "transactions.transaction_metadata",
    "AbortedTransaction": "log.producer_state",
    "AppendOrigin": "log.producer_state",
    "CommittedOffset": "groups.offsets",
    "DelayedDeleteRecords": "replication.delayed_delete_records",
    "DelayedFetch": "replication.delayed_fetch",
    "DelayedProduce": "replication.delayed_produce",
    "DeleteRecordsCase": "replication.delayed_delete_records",
    "DeleteRecordsStatus": "replication.delayed_delete_records",
    "EpochEndOffset": "log.leader_epoch_cache",
    "ErrorCode": "errors",
    "FetchCase": "replication.delayed_fetch",
    "FetchIsolation": "log.fetch_thresholds",
    "FetchParams": "replication.requests",
    "Group": "groups.group",
    "GroupConfig": "settings.group_settings",
    "GroupManager": "groups.group_manager",
    "GroupRefusal": "errors",
    "GroupState": "groups.group",
    "InitProducerIdResult": "transactions.transaction_metadata",
    "JoinGroupMember": "groups.group",
    "JoinGroupRequest": "groups.group",
    "JoinGroupResult": "groups.group",
    "KafkaError": "errors",
    "LeaderAppend": "replication.partition",
    "LeaderEpochCache": "log.leader_epoch_cache",
    "Log": "log.log",
    "LogConfig": "log.log",
    "MarkerChannel": "transactions.transaction_marker_manager",
    "OffsetEntry": "groups.offsets",
    "OffsetKey": "groups.offsets",
    "OffsetsCodec": "groups.offsets",
    "Partition": "replication.partition",
    "PartitionDeleteRecordsResponse": "replication.requests",
    "PartitionFetch": "replication.requests",
    "PartitionFetchResponse": "replication.requests",
    "PartitionProduceResponse": "replication.requests",
    "ProduceCase": "replication.delayed_produce",
    "ProduceStatus": "replication.delayed_produce",
    "ProducerIdentity": "log.producer_state",
    "ProducerStates": "log.producer_state",
    "RecordBatch": "log.record_batch",
    "ReplicaManager": "replication.replica_manager",
    "Segment": "log.log",
    "StoredEntry": "groups.offsets",
    "SyncGroupResult": "groups.group",
    "TopicPartition": "topic_partition",
    "TransactionConfig": "transactions.transaction_metadata",
    "TransactionCoordinator": "transactions.transaction_coordinator",
    "TransactionEntry": "transactions.transaction_metadata",
    "TransactionListing": "transactions.transaction_metadata",
    "TransactionRecord": "transactions.transaction_metadata",
    "TransactionRefusal": "errors",
    "TransactionResult": "log.record_batch",
    "TransactionState": "transactions.transaction_metadata",
    "TransactionsCodec": "transactions.transaction_metadata",
    "group_partition": "groups.offsets",
    "write_markers": "transactions.transaction_marker_manager",
}
"""The module of this package that has each name: it is imported when that is first asked for."""

if not TYPE_CHECKING:  # or it would let any name pass

    def __getattr__(name: str) -> Any:
        """Import what is asked for: a `TopicPartition` needs little of a broker."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return list(__all__)
