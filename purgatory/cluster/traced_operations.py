"""What a trace says of an operation that waits: on which keys, and who asked for it."""

from __future__ import annotations

from typing import Any

from purgatory.core.operation import DelayedOperation
from purgatory.kafka import DelayedFetch
from purgatory.kafka.share_groups.delayed_share_fetch import DelayedShareFetch
from purgatory.kafka.share_groups.share_partition import DelayedAcquisitionLock

_KIND_OF_PURGATORY = {
    "Produce": "producer",
    **dict.fromkeys(("Rebalance", "Sync", "Heartbeat"), "member"),
    **dict.fromkeys(("TransactionMarker", "TransactionTimeout"), "transaction"),
    **dict.fromkeys(("DeleteRecords", "ElectLeader", "Topic", "AlterAcls"), "admin"),
}


def keys_of(operation: DelayedOperation) -> tuple[Any, ...]:
    """Return the keys that it waits on.

    Those of a fetch say also which end of the log it waits for, and one that is answered at once is
    watched under nothing.
    """
    if isinstance(operation, DelayedFetch | DelayedShareFetch | DelayedAcquisitionLock):
        return tuple(operation.topic_partitions)
    return operation._op_keys


def kind_of(purgatory: str, operation: DelayedOperation) -> str:
    """Return who asked for an operation: a producer, a follower, a consumer, a member, ..."""
    if isinstance(operation, DelayedFetch):
        return "consumer" if operation.params.replica_id < 0 else "follower"
    return _KIND_OF_PURGATORY.get(purgatory, "consumer")
