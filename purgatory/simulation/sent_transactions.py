"""What transactional producers send: transactions, their batches, and records made from others.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from purgatory.kafka import EndTransaction, ProducerIdentity, RecordBatch, TopicPartition
from purgatory.simulation.messages import Batch, Message, PartitionQueue


class SentTransaction:
    """One transaction, as its producer and the logs have it.

    ``asked`` is how the producer asked for it to be ended, ``told`` how it was told that it is;
    ``how`` is what the first of its markers says that is committed, and ``marked`` counts its
    batches below such markers.
    """

    __slots__ = (
        "asked",
        "batches",
        "begun_ns",
        "how",
        "marked",
        "partitions",
        "producer",
        "told",
        "transactional_id",
    )

    def __init__(self, transactional_id: str, producer: ProducerIdentity, begun_ns: int) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.begun_ns = begun_ns
        self.partitions: set[TopicPartition] = set()
        self.batches = 0
        self.marked = 0
        self.asked: EndTransaction | None = None
        self.told: EndTransaction | None = None
        self.how: EndTransaction | None = None

    def __repr__(self) -> str:
        return f"the transaction of {self.transactional_id!r} that began at {self.begun_ns} ns"


class TransactionalBatch(Batch):
    """A batch that belongs to a transaction; ``how`` is what its partition's marker says of it."""

    __slots__ = ("how", "transaction")

    def __init__(
        self, queue: PartitionQueue, messages: list[Message], transaction: SentTransaction
    ) -> None:
        super().__init__(queue, messages, sum(message.size_bytes for message in messages))
        self.transaction = transaction
        self.how: EndTransaction | None = None
        transaction.batches += 1

    def record_batch(self) -> RecordBatch:
        producer_id, producer_epoch = self.transaction.producer
        return RecordBatch(
            0,
            len(self.messages),
            self.size_bytes,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self.base_sequence,
            tag=self,
            transactional=True,
        )


class TransformedMessage(Message):
    """A record that was made from another one, which was read at ``source``."""

    __slots__ = ("source",)

    def __init__(
        self,
        queue: PartitionQueue,
        sequence: int,
        read: Message,
        created_ns: int,
        source: tuple[TopicPartition, int],
    ) -> None:
        super().__init__(queue, sequence, read.key, read.size_bytes, created_ns)
        self.source = source


@dataclass
class TransactionCounts:
    """What became of the transactions of one group of producers.

    `stale` counts those whose offsets were refused because the group had gone on without their
    consumer, `fenced` those whose producer was fenced, `failed` those that it gave up otherwise,
    `unsettled` those open at the end. `zombies` counts how often a producer stood still, and
    `instances` how many there were in all.
    """

    begun: int = 0
    committed: int = 0
    aborted: int = 0
    stale: int = 0
    fenced: int = 0
    failed: int = 0
    unsettled: int = 0
    zombies: int = 0
    instances: int = 0
