"""The produce request, on its way from a producer to a broker and back."""

from __future__ import annotations

from typing import Protocol

from purgatory.kafka import ErrorCode, PartitionProduceResponse, TopicPartition
from purgatory.kafka.replication.delayed_produce import closes_connection
from purgatory.simulation.messages import Batch
from purgatory.simulation.network import Connection, Request, Server
from purgatory.simulation.producer_group import ProducerGroup

Answer = dict[TopicPartition, PartitionProduceResponse]


class Sender(Protocol):
    """The producer that a request comes from."""

    @property
    def group(self) -> ProducerGroup:
        """What it shares with others."""

    def answered(self, request: ProduceRequest, answer: Answer) -> None:
        """The broker's answer arrived."""

    def disconnected(self, request: ProduceRequest) -> None:
        """The connection broke before the answer came."""


class ProduceRequest(Request):
    """A produce request: batches for partitions that one broker leads."""

    __slots__ = ("batches", "producer")
    api = "produce"
    purgatory = "Produce"
    kind = "producer"

    def __init__(self, producer: Sender, connection: Connection, batches: list[Batch]) -> None:
        super().__init__(connection)
        self.producer = producer
        self.batches = batches
        self.may_wait = producer.group.acks == -1
        self.expects_answer = producer.group.acks != 0

    @property
    def timeout_ms(self) -> int:
        return self.producer.group.section.timeout_ms

    @property
    def watch_keys(self) -> tuple[TopicPartition, ...]:
        return tuple([batch.queue.topic_partition for batch in self.batches])

    def execute(self, broker: Server) -> None:
        group = self.producer.group
        if broker.faults.active and broker.faults.refuses_produce(broker.id):
            refused = PartitionProduceResponse(ErrorCode.NOT_ENOUGH_REPLICAS)
            self.respond(dict.fromkeys(self.watch_keys, refused))
            return
        entries = {batch.queue.topic_partition: batch.record_batch() for batch in self.batches}
        broker.manager.append_records(group.section.timeout_ms, group.acks, entries, self.respond)
        # What one partition's followers have yet to fetch, the append has not committed.
        if self.answers or len(entries) > 1:
            broker.look(entries)

    def respond(self, answer: Answer) -> None:
        super().respond(answer)
        if closes_connection(self.producer.group.acks, answer.values()):
            self.connection.broken()

    def deliver(self, answer: Answer) -> None:
        self.producer.answered(self, answer)

    def fail(self) -> None:
        self.producer.disconnected(self)
