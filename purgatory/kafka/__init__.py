"""The waits of a Kafka broker, modelled in full: produce, fetch and delete-records.

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
from purgatory.kafka.errors import ErrorCode, KafkaError
from purgatory.kafka.leader_append import LeaderAppend
from purgatory.kafka.leader_epoch_cache import LeaderEpochCache
from purgatory.kafka.log import Log, LogConfig
from purgatory.kafka.partition import Partition
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

__all__ = [
    "AbortedTransaction",
    "AppendOrigin",
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
    "KafkaError",
    "LeaderAppend",
    "LeaderEpochCache",
    "Log",
    "LogConfig",
    "Partition",
    "PartitionDeleteRecordsResponse",
    "PartitionFetch",
    "PartitionFetchResponse",
    "PartitionProduceResponse",
    "ProduceCase",
    "ProduceStatus",
    "ProducerStates",
    "RecordBatch",
    "ReplicaManager",
    "Segment",
    "TopicPartition",
]
