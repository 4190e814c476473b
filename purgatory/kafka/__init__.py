"""What a Kafka broker decides, modelled in full: its logs, replicas and groups, and their waits.

A model without I/O, threads and wall clock: time and scheduling come in from outside, so that a
simulation, a threaded run and a network server use the same code.
"""

from purgatory.kafka.delayed_delete_records import (
    DelayedDeleteRecords,
    DeleteRecordsCase,
    DeleteRecordsStatus,
)
from purgatory.kafka.delayed_fetch import DelayedFetch, FetchCase
from purgatory.kafka.delayed_produce import DelayedProduce, ProduceCase, ProduceStatus
from purgatory.kafka.errors import ErrorCode, GroupRefusal, KafkaError, TransactionRefusal
from purgatory.kafka.groups.broker_groups import BrokerGroups
from purgatory.kafka.groups.committed_offset import (
    OFFSETS_TOPIC,
    CommittedOffset,
    OffsetEntry,
    OffsetKey,
    OffsetsCodec,
    StoredEntry,
    partition_of,
)
from purgatory.kafka.groups.group import Group, GroupState, Joining
from purgatory.kafka.groups.group_answers import JoinAnswer, RosterEntry, SyncAnswer
from purgatory.kafka.groups.group_config import GroupConfig
from purgatory.kafka.leader_append import LeaderAppend
from purgatory.kafka.leader_epoch_cache import LeaderEpochCache
from purgatory.kafka.log import Log, LogConfig
from purgatory.kafka.partition import Partition
from purgatory.kafka.producer_identity import ProducerIdentity
from purgatory.kafka.producer_state import ProducerStates
from purgatory.kafka.record_batch import EndTransaction, RecordBatch
from purgatory.kafka.replica_manager import ReplicaManager
from purgatory.kafka.requests import (
    AbortedTransaction,
    AppendOrigin,
    EpochEndOffset,
    FetchIsolation,
    FetchParams,
    PartitionDeleteRecordsResponse,
    PartitionFetch,
    PartitionFetchResponse,
    PartitionProduceResponse,
)
from purgatory.kafka.segment import Segment
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.kafka.transactions.marker_routes import MarkerRoutes
from purgatory.kafka.transactions.transaction_answers import InitAnswer, TransactionListing
from purgatory.kafka.transactions.transaction_config import TransactionConfig
from purgatory.kafka.transactions.transaction_coordinator import TransactionCoordinator
from purgatory.kafka.transactions.transaction_record import (
    TRANSACTIONS_TOPIC,
    TransactionEntry,
    TransactionRecord,
    TransactionsCodec,
)
from purgatory.kafka.transactions.transaction_state import TransactionState
from purgatory.kafka.transactions.written_markers import write_markers

__all__ = [
    "OFFSETS_TOPIC",
    "TRANSACTIONS_TOPIC",
    "AbortedTransaction",
    "AppendOrigin",
    "BrokerGroups",
    "CommittedOffset",
    "DelayedDeleteRecords",
    "DelayedFetch",
    "DelayedProduce",
    "DeleteRecordsCase",
    "DeleteRecordsStatus",
    "EndTransaction",
    "EpochEndOffset",
    "ErrorCode",
    "FetchCase",
    "FetchIsolation",
    "FetchParams",
    "Group",
    "GroupConfig",
    "GroupRefusal",
    "GroupState",
    "InitAnswer",
    "JoinAnswer",
    "Joining",
    "KafkaError",
    "LeaderAppend",
    "LeaderEpochCache",
    "Log",
    "LogConfig",
    "MarkerRoutes",
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
    "RosterEntry",
    "Segment",
    "StoredEntry",
    "SyncAnswer",
    "TopicPartition",
    "TransactionConfig",
    "TransactionCoordinator",
    "TransactionEntry",
    "TransactionListing",
    "TransactionRecord",
    "TransactionRefusal",
    "TransactionState",
    "TransactionsCodec",
    "partition_of",
    "write_markers",
]
