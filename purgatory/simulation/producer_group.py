"""What a group of producers that are alike share: settings, chances, counts.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from purgatory.simulation.client_latencies import Latencies
from purgatory.simulation.distributions import (
    exponential_table,
    sampler,
    stream,
    table_sampler,
)
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.group_books import GroupBooks, GroupCounts
from purgatory.simulation.ledger import Ledger
from purgatory.simulation.messages import Batch
from purgatory.simulation.network import Connection, Server
from purgatory.simulation.scenario import ProducersSection, Scenario
from purgatory.simulation.simulated_controller import SimulatedController
from purgatory.trace.table_rows import SendRow

_MOST_KEYS_IN_TABLE = 100_000
"""Up to how many keys their partitions are looked up, not computed each time."""


class ProducerGroup:
    """What producers that are alike share: settings, chances, counts.

    Args:
        section: the settings.
        scenario: the run's settings.
        engine: runs the events.
        controller: tells who leads.
        brokers: all brokers, by number.
        ledger: keeps the books.
        write: takes rows of the trace's `sends`; None writes none.
    """

    def __init__(
        self,
        section: ProducersSection,
        scenario: Scenario,
        engine: Engine,
        controller: SimulatedController,
        brokers: Sequence[Server],
        ledger: Ledger,
        write: Callable[[SendRow], None] | None,
    ) -> None:
        self.section = section
        self.name = section.group
        self.acks = -1 if section.acks == "all" else section.acks
        self.counts = GroupCounts()
        self.books = GroupBooks(self.name, self.acks, self.counts)
        self.latencies = Latencies()
        self.engine = engine
        self.controller = controller
        self.ledger = ledger
        self.write = write
        self.max_in_flight = section.max_in_flight
        self.idempotence = section.idempotence
        self.batch_size = section.batch_size
        # A record that finds nothing before it needs no queue; what else holds it back is rare.
        self.sends_at_once = (
            section.linger_ms == 0 and section.max_in_flight > 1 and not section.idempotence
        )
        self.linger_ns = section.linger_ms * NS_PER_MS
        self.backoff_ns = max(1, section.retry_backoff_ms * NS_PER_MS)
        self.delivery_ns = section.delivery_timeout_ms * NS_PER_MS
        topic = section.transactions and section.transactions.writes
        self.topic_partitions = controller.partitions_of[topic or scenario.topic.name]
        self.first_leaders = [
            controller.assignment_of(place).leader for place in controller.topic_partitions
        ]
        self._brokers = brokers
        self._seed = scenario.seed
        self._delay_ns = sampler(scenario.network.delay_ms, self.stream("network"), NS_PER_MS)
        self.next_size = sampler(section.record_bytes, self.stream("sizes"))
        self.next_key = self._key_sampler()
        self.partition_of = self._partitioner()

    def stream(self, purpose: str) -> Any:
        """The group's stream of chance for one purpose."""
        return stream(self._seed, "producers", self.name, purpose)

    def gap_samplers(self) -> tuple[Callable[[], int], Callable[[], int]]:
        """Draw the time to a producer's first record, and that between two, in nanoseconds.

        So that the rate is the rate from the start on: at random, the first gap is as all others;
        evenly, it is any part of one, or all producers would send at the same moments.
        """
        assert self.section.rate is not None
        mean_ns = 1e9 / self.section.rate
        if self.section.spacing == "even":
            chance = self.stream("starts").random
            return lambda: int(chance() * mean_ns), lambda: round(mean_ns)
        gap_ns = table_sampler(exponential_table(mean_ns), self.stream("arrivals"))
        return gap_ns, gap_ns

    def transaction_of(self, _batch: Batch) -> tuple[Any, ...]:
        """What the trace says of the transaction in which a batch is sent: here, of none."""
        return ()

    def connect(self, broker_id: int, on_break: Callable[[], None]) -> Connection:
        """A connection from one of the producers to a broker."""
        return Connection(
            self.engine,
            self._brokers[broker_id],
            self._delay_ns,
            self.section.answer_timeout_ms,
            self.name,
            on_break,
        )

    def _key_sampler(self) -> Callable[[], int]:
        keys, chance = self.section.keys, self.stream("keys").random
        return lambda: int(chance() * keys)

    def _partitioner(self) -> Callable[[int, int, int], int]:
        count, how = len(self.topic_partitions), self.section.partitioner
        if how == "modulo":
            return lambda key, _sequence, _producer: key % count
        if how == "round-robin":
            return lambda _key, sequence, producer: (sequence + producer) % count
        if how == "random":
            chance = self.stream("partitions").random
            return lambda _key, _sequence, _producer: int(chance() * count)
        if self.section.keys > _MOST_KEYS_IN_TABLE:
            return lambda key, _sequence, _producer: _hash(key) % count
        table = array("i", (_hash(key) % count for key in range(self.section.keys)))
        return lambda key, _sequence, _producer: table[key]


def _hash(key: int) -> int:
    return zlib.crc32(key.to_bytes(8, "big"))
