"""An administrator that deletes old records at intervals, and waits for all replicas to do so."""

from __future__ import annotations

from collections.abc import Sequence

from purgatory.kafka import TopicPartition
from purgatory.simulation.controller import SimulatedController
from purgatory.simulation.distributions import sampler, stream
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.invariants import CommitWatch
from purgatory.simulation.network import CallbackRequest, Connection, Server
from purgatory.simulation.scenario import DeleteRecordsSection, Scenario


class DeleteRecordsRequest(CallbackRequest):
    """A request to delete a partition's records below an offset."""

    __slots__ = ("offset", "topic_partition")
    api = "delete_records"
    purgatory = "DeleteRecords"
    kind = "admin"

    def __init__(
        self, connection: Connection, topic_partition: TopicPartition, offset: int, timeout_ms: int
    ) -> None:
        # The response is ignored: the next request is scheduled anyway.
        super().__init__(connection, lambda _: None, timeout_ms, (topic_partition,))
        self.topic_partition = topic_partition
        self.offset = offset

    def execute(self, broker: Server) -> None:
        offsets = {self.topic_partition: self.offset}
        broker.manager.delete_records(self.timeout_ms, offsets, self.respond)


class Administrator:
    """Sends a request per partition and interval to its leader."""

    def __init__(
        self,
        section: DeleteRecordsSection,
        scenario: Scenario,
        engine: Engine,
        controller: SimulatedController,
        brokers: Sequence[Server],
        watch: CommitWatch,
    ) -> None:
        self._section = section
        self._engine = engine
        self._controller = controller
        self._watch = watch
        delay_ns = sampler(
            scenario.network.delay_ms, stream(scenario.seed, "administrator"), NS_PER_MS
        )
        # One connection per partition: a request that waits holds up no other partition's.
        self._connections = {
            topic_partition: [Connection(engine, broker, delay_ns) for broker in brokers]
            for topic_partition in controller.topic_partitions
        }
        engine.call_after(section.interval_ms * NS_PER_MS, self._delete)

    def _delete(self) -> None:
        for topic_partition, connections in self._connections.items():
            offset = self._watch.read_offset(topic_partition) - self._section.keep_records
            leader = self._controller.partition_leader(topic_partition.partition)
            if offset <= 0 or leader < 0 or connections[leader].in_flight:
                continue
            connection = connections[leader]
            connection.send(
                DeleteRecordsRequest(connection, topic_partition, offset, self._section.timeout_ms)
            )
        self._engine.call_after(self._section.interval_ms * NS_PER_MS, self._delete)
