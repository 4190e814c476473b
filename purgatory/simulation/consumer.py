"""Consumers: they fetch from the leaders of their partitions, wait for bytes, and process records.

The consumers of a group share the partitions, fixed for the run, and settings, random draws and
counts (`ConsumerGroup`). A consumer has one fetch under way to each broker that leads a partition
of its own, as Kafka's has. A poll is one response. Its position moves behind the records read; a
position below the log's start moves to it, and the skipped records are counted.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from purgatory.kafka import (
    ErrorCode,
    FetchParams,
    PartitionFetch,
    PartitionFetchResponse,
    TopicPartition,
)
from purgatory.simulation.controller import SimulatedController
from purgatory.simulation.distributions import sampler, stream
from purgatory.simulation.engine import NS_PER_MS, NS_PER_US, Engine
from purgatory.simulation.messages import Batch
from purgatory.simulation.network import Connection, Request, Server
from purgatory.simulation.scenario import ConsumersSection, Scenario
from purgatory.trace.table_rows import ReadRow


@dataclass
class ConsumerCounts:
    """Counts of a group of consumers.

    `polls` are responses, of which `empty_polls` had no records; `skipped` counts offsets that were
    deleted before they were read, `reread` the records that the group had read before.
    """

    polls: int = 0
    empty_polls: int = 0
    records: int = 0
    skipped: int = 0
    reread: int = 0


class ConsumerGroup:
    """Settings, random draws and counts of consumers that read the same partitions.

    Args:
        brokers: all brokers, by number.
        write: takes rows of the trace's `reads`; None writes none.
    """

    def __init__(
        self,
        section: ConsumersSection,
        scenario: Scenario,
        engine: Engine,
        controller: SimulatedController,
        brokers: Sequence[Server],
        write: Callable[[ReadRow], None] | None,
    ) -> None:
        self.section = section
        self.name = section.group
        self.engine = engine
        self.controller = controller
        self.counts = ConsumerCounts()
        self.write = write
        self.params = FetchParams(
            max_wait_ms=section.max_wait_ms,
            min_bytes=section.min_bytes,
            max_bytes=section.max_bytes,
        )
        self._brokers = brokers
        name = (scenario.seed, "consumers", section.group)
        self._delay_ns = sampler(scenario.network.delay_ms, stream(*name, "network"), NS_PER_MS)
        self.interval_ns = sampler(section.poll_interval_ms, stream(*name, "interval"), NS_PER_MS)
        self.topic_partitions = controller.topic_partitions
        self.read_offsets: dict[TopicPartition, int] = {}
        """The highest offset that any of its consumers has read, by partition."""

    def leader_of(self, topic_partition: TopicPartition) -> int:
        """The broker that leads a partition, or -1."""
        return self.controller.partition_state(topic_partition).leader

    def connect(self, broker_id: int) -> Connection:
        """A connection from one of the consumers to a broker."""
        return Connection(
            self.engine,
            self._brokers[broker_id],
            self._delay_ns,
            self.section.request_timeout_ms,
            self.name,
        )


_BACKOFF_NS = 100 * NS_PER_MS


class ConsumerFetch(Request):
    """A consumer's fetch."""

    __slots__ = ("fetches", "session")
    api = "fetch"
    purgatory = "Fetch"
    kind = "consumer"

    def __init__(self, session: FetchSession, fetches: dict[TopicPartition, PartitionFetch]):
        super().__init__(session.connection)
        self.session = session
        self.fetches = fetches

    @property
    def timeout_ms(self) -> int:
        return self.session.consumer.group.params.max_wait_ms

    @property
    def watch_keys(self) -> tuple[TopicPartition, ...]:
        return tuple(self.fetches)

    def execute(self, broker: Server) -> None:
        params = self.session.consumer.group.params
        broker.manager.fetch_records(params, self.fetches, self.respond)

    def deliver(self, response: Any) -> None:
        self.session.handle_response(response)

    def fail(self) -> None:
        self.session.handle_disconnect()


class FetchSession:
    """A consumer's fetches from one broker, one at a time."""

    __slots__ = ("_busy", "broker_id", "connection", "consumer")

    def __init__(self, consumer: Consumer, broker_id: int) -> None:
        self.consumer = consumer
        self.broker_id = broker_id
        self.connection = consumer.group.connect(broker_id)
        self._busy = False

    def fetch(self) -> None:
        """Fetch all partitions that the broker leads, unless a fetch is under way."""
        if self._busy:
            return
        fetches = self.consumer.fetch_requests(self.broker_id)
        if fetches:
            self._busy = True
            self.connection.send(ConsumerFetch(self, fetches))

    def handle_response(self, responses: dict[TopicPartition, PartitionFetchResponse]) -> None:
        """Read a response, process it, then fetch again."""
        consumer = self.consumer
        consumer.read(responses)
        consumer.group.engine.call_after(consumer.group.interval_ns(), self._end_work)

    def _end_work(self) -> None:
        self._busy = False
        self.fetch()

    def handle_disconnect(self) -> None:
        """Refresh the leaders after the backoff."""
        self._busy = False
        for topic_partition in self.consumer.fetch_requests(self.broker_id):
            self.consumer.refresh_leader(topic_partition)


class Consumer:
    """One consumer of a group; its number is unique in the group."""

    def __init__(self, group: ConsumerGroup, number: int) -> None:
        self.group = group
        self.number = number
        self.positions: dict[TopicPartition, int] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._sessions: dict[int, FetchSession] = {}
        self._polls = 0

    def start(self) -> None:
        """Begin to read its share of the partitions from the start."""
        own = self.group.topic_partitions[self.number :: self.group.section.count]
        self.positions = dict.fromkeys(own, 0)
        self._leaders = {
            topic_partition: self.group.leader_of(topic_partition) for topic_partition in own
        }
        for topic_partition, leader in self._leaders.items():
            if leader < 0:
                self._schedule_refresh(topic_partition)
        for broker_id in sorted(set(self._leaders.values()) - {-1}):
            self._session(broker_id).fetch()

    def has_consumed(self, committed: Mapping[TopicPartition, int]) -> bool:
        """Whether it has read up to these offsets."""
        return all(
            position >= committed.get(topic_partition, 0)
            for topic_partition, position in self.positions.items()
        )

    def fetch_requests(self, broker_id: int) -> dict[TopicPartition, PartitionFetch]:
        """The fetches of the partitions that a broker leads."""
        max_bytes = self.group.section.partition_max_bytes
        return {
            topic_partition: PartitionFetch(self.positions[topic_partition], max_bytes)
            for topic_partition, leader in self._leaders.items()
            if leader == broker_id
        }

    def read(self, responses: dict[TopicPartition, PartitionFetchResponse]) -> None:
        """Read a response and advance the positions."""
        group = self.group
        group.counts.polls += 1
        self._polls += 1
        before = group.counts.records
        for topic_partition, response in responses.items():
            if response.error is ErrorCode.NONE:
                if response.batches:
                    self._read_batches(topic_partition, response)
            elif response.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                self._reset_position(topic_partition, response)
            else:
                self.refresh_leader(topic_partition)
        if group.counts.records == before:
            group.counts.empty_polls += 1

    def refresh_leader(self, topic_partition: TopicPartition) -> None:
        """Pause a partition until its leader is known again."""
        if self._leaders.get(topic_partition, -1) >= 0:
            self._leaders[topic_partition] = -1
            self._schedule_refresh(topic_partition)

    def _schedule_refresh(self, topic_partition: TopicPartition) -> None:
        self.group.engine.call_after(_BACKOFF_NS, self._find_leader, topic_partition)

    def _find_leader(self, topic_partition: TopicPartition) -> None:
        leader = self.group.leader_of(topic_partition)
        if leader < 0:
            self._schedule_refresh(topic_partition)
            return
        self._leaders[topic_partition] = leader
        self._session(leader).fetch()

    def _session(self, broker_id: int) -> FetchSession:
        session = self._sessions.get(broker_id)
        if session is None:
            session = self._sessions[broker_id] = FetchSession(self, broker_id)
        return session

    def _reset_position(
        self, topic_partition: TopicPartition, response: PartitionFetchResponse
    ) -> None:
        """Move to the log's start, or back to its end after a truncation."""
        position = self.positions[topic_partition]
        if position < response.log_start_offset:
            self.group.counts.skipped += response.log_start_offset - position
            self.positions[topic_partition] = response.log_start_offset
        else:
            self.positions[topic_partition] = max(0, response.high_watermark)

    def _read_batches(
        self, topic_partition: TopicPartition, response: PartitionFetchResponse
    ) -> None:
        group, write = self.group, self.group.write
        next_offset = response.batches[-1].next_offset
        position = self.positions[topic_partition]
        previous_offset = group.read_offsets.get(topic_partition, 0)
        time_us = group.engine.now_ns() // NS_PER_US
        is_reapplied = not group.section.deduplicates
        topic, partition = topic_partition
        for record_batch in response.batches:
            batch = record_batch.tag
            assert isinstance(batch, Batch), "producers alone append batches"
            offset = record_batch.base_offset
            for message in batch.messages:
                if offset >= position:
                    group.counts.records += 1
                    group.counts.reread += offset < previous_offset
                    if write is not None:
                        write(
                            ReadRow(
                                group.name,
                                self.number,
                                self._polls,
                                topic,
                                partition,
                                offset,
                                message.value_id,
                                time_us,
                                offset >= previous_offset or is_reapplied,
                            )
                        )
                offset += 1
        self.positions[topic_partition] = next_offset
        group.read_offsets[topic_partition] = max(previous_offset, next_offset)
