"""A Kafka broker's decisions: its logs, replicas and groups, and their waits.

A model without I/O, threads and wall clock: time and scheduling come in from outside, so that a
simulation and a network server use the same code.

Ground rules: only one thread, that of the broker's loop, touches a broker's objects. Beyond the
purgatories, which have locks of their own, there are none.
"""

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
from purgatory.kafka.replication.delayed_produce import DelayedProduce, ProduceCase, ProduceStatus
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
