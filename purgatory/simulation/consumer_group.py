"""What the consumers of a group share: settings, chances, counts.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from purgatory.kafka import FetchIsolation, FetchParams, TopicPartition
from purgatory.simulation.distributions import sampler, stream
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.group_watch import GroupWatch
from purgatory.simulation.invariants import Invariants
from purgatory.simulation.network import Connection, Server
from purgatory.simulation.scenario import ConsumersSection, Scenario
from purgatory.simulation.simulated_controller import SimulatedController
from purgatory.simulation.transaction_watch import TransactionWatch
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
            timeout_ms: how long an answer is waited for; 0: as long as the section says.
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
