"""The waits of a Kafka broker, modelled in full: produce, fetch and delete-records.

A model without I/O, threads and wall clock: time and scheduling come in from outside, so that a
simulation, a threaded run and a network server use the same code.
"""

from purgatory.kafka.errors import ErrorCode, KafkaError
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
from purgatory.kafka.topic_partition import TopicPartition

__all__ = [
    "AbortedTransaction",
    "AppendOrigin",
    "EndTransaction",
    "EpochEndOffset",
    "ErrorCode",
    "FetchIsolation",
    "FetchParams",
    "KafkaError",
    "PartitionDeleteRecordsResponse",
    "PartitionFetch",
    "PartitionFetchResponse",
    "PartitionProduceResponse",
    "RecordBatch",
    "ReplicaManager",
    "TopicPartition",
]
