"""What producers and admin tools are answered, as plain tuples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from purgatory.kafka.errors import ErrorCode
from purgatory.kafka.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from purgatory.kafka.topic_partition import TopicPartition
from purgatory.kafka.transactions.transaction_record import TransactionRecord


class InitAnswer(NamedTuple):
    """Who a producer is from now on, or why that can't be told."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class TransactionListing(NamedTuple):
    """A transactional id that is coordinated here, and how it stands with it."""

    transactional_id: str
    record: TransactionRecord


Codes = Mapping[TopicPartition, ErrorCode]
RespondInit = Callable[[InitAnswer], object]
RespondCode = Callable[[ErrorCode], object]
RespondCodes = Callable[[Codes], object]
