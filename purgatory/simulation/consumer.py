"""Consumers: they fetch from the leaders of their partitions, wait for bytes, and process records.

A consumer has one fetch under way to each broker that leads a partition of its own, as Kafka's has.
A poll is one response. Its position moves behind what it read; a position that the log no longer
has goes to the log's start, and the skipped records are counted. The consumers of a group share
settings, random draws and counts (`ConsumerGroup`).

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from purgatory.kafka import (
    ErrorCode,
    FetchIsolation,
    FetchParams,
    PartitionFetch,
    PartitionFetchResponse,
    RecordBatch,
    TopicPartition,
)
from purgatory.simulation.controller import SimulatedController
from purgatory.simulation.distributions import sampler, stream
from purgatory.simulation.engine import NS_PER_MS, NS_PER_US, Engine
from purgatory.simulation.invariants import GroupWatch, Invariants, TransactionWatch
from purgatory.simulation.messages import Batch
from purgatory.simulation.network import Connection, Request, Server
from purgatory.simulation.scenario import ConsumersSection, Scenario
from purgatory.trace.table_rows import ReadRow

_ISOLATION = {
    "read_uncommitted": FetchIsolation.HIGH_WATERMARK,
    "read_committed": FetchIsolation.TXN_COMMITTED,
}


@dataclass
class ConsumerCounts:
    """What a group of consumers read.

    `polls` are answers, of which `empty_polls` brought nothing; `skipped` counts offsets that were
    deleted before they were read, `reread` the records that a member of the group had read before.
    `joins` counts requests to join, `rebalances` the generations of the group, `expelled` the
    members that worked for too long.
    """

    polls: int = 0
    empty_polls: int = 0
    records: int = 0
    skipped: int = 0
    reread: int = 0
    joins: int = 0
    rebalances: int = 0
    expelled: int = 0
    commits: int = 0


class ConsumerGroup:
    """What consumers share that read the same partitions: settings, chances, counts.

    Args:
        section: the settings.
        scenario: the run's settings.
        engine: runs the events.
        controller: tells who leads.
        brokers: all brokers, by number.
        invariants: is told if the group breaks its promises.
        transactions: knows which of them are committed.
        write: takes rows of the trace's `reads`; None writes none.
    """

    def __init__(
        self,
        section: ConsumersSection,
        scenario: Scenario,
        engine: Engine,
        controller: SimulatedController,
        brokers: Sequence[Server],
        invariants: Invariants,
        transactions: TransactionWatch,
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
            isolation=_ISOLATION[section.isolation],
        )
        self._brokers = brokers
        name = (scenario.seed, "consumers", section.group)
        self._delay_ns = sampler(scenario.network.delay_ms, stream(*name, "network"), NS_PER_MS)
        self.interval_ns = sampler(section.poll_interval_ms, stream(*name, "interval"), NS_PER_MS)
        self.stay_ns = sampler(section.stay_ms, stream(*name, "stay"), NS_PER_MS)
        self.away_ns = sampler(section.away_ms, stream(*name, "away"), NS_PER_MS)
        self.topic_partitions = controller.partitions_of[section.topic or scenario.topic.name]
        self.read_until: dict[TopicPartition, int] = {}
        """How far any of the consumers has read."""
        self.watch = GroupWatch(section.group, invariants)
        self.transactions = transactions
        self.sends_on = False
        """Whether producers make other records of what it reads, in transactions."""
        self.reads_committed = section.isolation == "read_committed"

    def leader_of(self, place: TopicPartition) -> int:
        """The broker that leads a partition, or -1."""
        return self.controller.assignment_of(place).leader

    def connect(self, broker_id: int, timeout_ms: int = 0) -> Connection:
        """A connection from one of the consumers to a broker.

        Args:
            broker_id: the broker.
            timeout_ms: how long a response is waited for; 0: as long as the section says.
        """
        return Connection(
            self.engine,
            self._brokers[broker_id],
            self._delay_ns,
            timeout_ms or self.section.request_timeout_ms,
            self.name,
        )

    def has_read(self, committed: Mapping[TopicPartition, int]) -> bool:
        """Whether its consumers, together, have read up to the given offsets."""
        return all(
            self.read_until.get(place, 0) >= committed[place]
            for place in self.topic_partitions
            if place in committed
        )


_BACKOFF_NS = 100 * NS_PER_MS


class ConsumerFetch(Request):
    """A consumer's fetch."""

    __slots__ = ("assignment", "fetches", "session")
    api = "fetch"
    purgatory = "Fetch"
    kind = "consumer"

    def __init__(self, session: FetchSession, fetches: dict[TopicPartition, PartitionFetch]):
        super().__init__(session.connection)
        self.session = session
        self.fetches = fetches
        self.assignment = session.consumer.assignment

    @property
    def timeout_ms(self) -> int:
        return self.session.consumer.group.params.max_wait_ms

    @property
    def watch_keys(self) -> tuple[TopicPartition, ...]:
        return tuple(self.fetches)

    def execute(self, broker: Server) -> None:
        params = self.session.consumer.group.params
        broker.manager.fetch_records(params, self.fetches, self.respond)

    def deliver(self, answer: Any) -> None:
        self.session.answered(self, answer)

    def fail(self) -> None:
        self.session.failed()


class FetchSession:
    """A consumer's fetches to one broker: one after the other."""

    __slots__ = ("_busy", "broker_id", "connection", "consumer")

    def __init__(self, consumer: Consumer, broker_id: int) -> None:
        self.consumer = consumer
        self.broker_id = broker_id
        self.connection = consumer.group.connect(broker_id)
        self._busy = False

    def fetch(self) -> None:
        """Ask for all partitions that the broker leads, unless a fetch is under way."""
        if self._busy:
            return
        fetches = self.consumer.fetches_to(self.broker_id)
        if fetches:
            self._busy = True
            self.connection.send(ConsumerFetch(self, fetches))

    def answered(
        self, request: ConsumerFetch, answer: dict[TopicPartition, PartitionFetchResponse]
    ) -> None:
        """A response arrived: read it, work on it, then ask again."""
        consumer = self.consumer
        if request.assignment != consumer.assignment:
            self._busy = False  # it was asked for what others may read by now
            self.fetch()
            return
        consumer.read(answer)
        work_ns = consumer.group.interval_ns()
        until: Mapping[TopicPartition, int] = {}
        if consumer.member is not None:
            until = {place: consumer.positions[place] for place in answer}
            consumer.begin_work(work_ns)
        consumer.group.engine.after(work_ns, self._end_work, request.assignment, until)

    def _end_work(self, assignment: int, until: Mapping[TopicPartition, int]) -> None:
        self._busy = False
        if self.consumer.member is not None:
            self.consumer.end_work(assignment, until)
        self.fetch()

    def failed(self) -> None:
        """The connection broke: look for the leaders, after a while."""
        self._busy = False
        for topic_partition in self.consumer.fetches_to(self.broker_id):
            self.consumer.look_for_leader(topic_partition)


class Membership(Protocol):
    """What has a say in what a consumer reads: its part in a group whose coordinator deals out the
    partitions, or the producer that sends on what it reads."""

    def start(self) -> None:
        """Join the group, or find out from where to read."""

    def works_for(self, work_ns: int) -> None:
        """The consumer has read something, and is busy with it for so long."""

    def came_to_poll(self) -> None:
        """The consumer is through with its work."""

    def was_given(
        self, topic_partition: TopicPartition, position: int, batches: Sequence[RecordBatch]
    ) -> None:
        """The consumer has read what is in these batches from a position on."""


class Consumer:
    """One consumer of a group.

    Args:
        group: its group.
        number: its number in the group.
    """

    def __init__(self, group: ConsumerGroup, number: int) -> None:
        self.group = group
        self.number = number
        self.member: Membership | None = None
        """None: the partitions are dealt out once and for all."""
        self.assignment = 0
        """How often it was given partitions."""
        self.positions: dict[TopicPartition, int] = {}
        self.processed: dict[TopicPartition, int] = {}
        """How far it is through with its work on what it read."""
        self._works = 0
        self._leaders: dict[TopicPartition, int] = {}
        self._sessions: dict[int, FetchSession] = {}
        self._polls = 0

    def start(self) -> None:
        """Join the group, or read what was dealt out to it."""
        if self.member is not None:
            self.member.start()
        else:
            self.assign(dict.fromkeys(self.own_partitions(), 0))

    def own_partitions(self) -> Sequence[TopicPartition]:
        """Those that are dealt out to it, if they are once and for all."""
        return self.group.topic_partitions[self.number :: self.group.section.count]

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from here, and no others any more."""
        self.assignment += 1
        self.positions = dict(positions)
        self.processed = dict(positions)
        self._leaders = {place: self.group.leader_of(place) for place in positions}
        for place, leader in self._leaders.items():
            if leader < 0:
                self._look_later(place)
        for broker_id in sorted(set(self._leaders.values()) - {-1}):
            self._session(broker_id).fetch()

    # Working on what it read.

    @property
    def works(self) -> bool:
        """Whether it is busy with something that it read."""
        return self._works > 0

    def begin_work(self, work_ns: int) -> None:
        """It came to something that takes so long."""
        self._works += 1
        if self.member is not None:
            self.member.works_for(work_ns)

    def end_work(self, assignment: int, until: Mapping[TopicPartition, int]) -> None:
        """It is through with that."""
        self._works -= 1
        if assignment == self.assignment:
            self.processed.update(until)
        if self.member is not None and not self._works:
            self.member.came_to_poll()

    def has_read(self, committed: Mapping[TopicPartition, int]) -> bool:
        """Whether it has read up to the given offsets; as a member, whether the group has."""
        if self.member is not None:
            return self.group.has_read(committed)
        return all(
            position >= committed.get(place, 0) for place, position in self.positions.items()
        )

    def fetches_to(self, broker_id: int) -> dict[TopicPartition, PartitionFetch]:
        """What to ask a broker for."""
        max_bytes = self.group.section.partition_max_bytes
        return {
            topic_partition: PartitionFetch(self.positions[topic_partition], max_bytes)
            for topic_partition, leader in self._leaders.items()
            if leader == broker_id
        }

    def read(self, answer: dict[TopicPartition, PartitionFetchResponse]) -> None:
        """Read a response and move on."""
        group = self.group
        group.counts.polls += 1
        self._polls += 1
        before = group.counts.records
        for topic_partition, response in answer.items():
            if response.error is ErrorCode.NONE:
                if response.batches:
                    self._read_batches(topic_partition, response)
            elif response.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                self._find_place(topic_partition, response)
            else:
                self.look_for_leader(topic_partition)
        if group.counts.records == before:
            group.counts.empty_polls += 1

    def look_for_leader(self, topic_partition: TopicPartition) -> None:
        """Do without a partition until its leader is known again."""
        if self._leaders.get(topic_partition, -1) >= 0:
            self._leaders[topic_partition] = -1
            self._look_later(topic_partition)

    def _look_later(self, topic_partition: TopicPartition) -> None:
        self.group.engine.after(_BACKOFF_NS, self._look, topic_partition, self.assignment)

    def _look(self, topic_partition: TopicPartition, assignment: int) -> None:
        if assignment != self.assignment:
            return
        leader = self.group.leader_of(topic_partition)
        if leader < 0:
            self._look_later(topic_partition)
            return
        self._leaders[topic_partition] = leader
        self._session(leader).fetch()

    def _session(self, broker_id: int) -> FetchSession:
        session = self._sessions.get(broker_id)
        if session is None:
            session = self._sessions[broker_id] = FetchSession(self, broker_id)
        return session

    def _find_place(
        self, topic_partition: TopicPartition, response: PartitionFetchResponse
    ) -> None:
        """Go to the log's start, or back to its end after a truncation."""
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
        batches: Sequence[RecordBatch] = response.batches
        next_offset = batches[-1].next_offset
        if group.reads_committed:
            batches = group.transactions.visible(batches, response.aborted_transactions)
        position = self.positions[topic_partition]
        read_before = group.read_until.get(topic_partition, 0)
        time_us = group.engine.now_ns() // NS_PER_US
        applies_again = not (group.section.deduplicates or group.sends_on)
        topic, partition = topic_partition
        for record_batch in batches:
            batch = record_batch.tag
            offset = record_batch.base_offset
            if not isinstance(batch, Batch):
                continue
            for message in batch.messages:
                if offset >= position:
                    group.counts.records += 1
                    group.counts.reread += offset < read_before
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
                                offset >= read_before or applies_again,
                            )
                        )
                offset += 1
        self.positions[topic_partition] = next_offset
        group.read_until[topic_partition] = max(read_before, next_offset)
        if self.member is not None:
            self.member.was_given(topic_partition, position, batches)
