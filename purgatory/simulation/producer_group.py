"""The settings, random draws and counts that producers of one group share.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from purgatory.simulation.controller import SimulatedController
from purgatory.simulation.distributions import (
    exponential_table,
    log_normal_table,
    sampler,
    stream,
    table_sampler,
)
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.invariants import Ledger
from purgatory.simulation.latencies import Latencies
from purgatory.simulation.messages import GroupCounts, GroupTotals
from purgatory.simulation.network import Connection, Server
from purgatory.simulation.scenario import ProducersSection, Scenario
from purgatory.trace.table_rows import SendRow

_MAX_TABLE_KEYS = 100_000
"""Up to so many keys, their partitions are precomputed."""


class ProducerGroup:
    """Settings, random draws and counts of a group of producers.

    Args:
        brokers: all brokers, by number.
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
        self.totals = GroupTotals(self.name, self.acks, self.counts)
        self.latencies = Latencies()
        self.engine = engine
        self.controller = controller
        self.ledger = ledger
        self.write = write
        self.max_in_flight = section.max_in_flight
        self.idempotence = section.idempotence
        self.batch_size = section.batch_size
        # Then a record with an empty queue before it is sent directly.
        self.has_no_linger = (
            section.linger_ms == 0 and section.max_in_flight > 1 and not section.idempotence
        )
        self.linger_ns = section.linger_ms * NS_PER_MS
        self.backoff_ns = max(1, section.retry_backoff_ms * NS_PER_MS)
        self.delivery_ns = section.delivery_timeout_ms * NS_PER_MS
        self.topic_partitions = controller.topic_partitions
        self.first_leaders = [
            controller.partition_state(topic_partition).leader
            for topic_partition in controller.topic_partitions
        ]
        self._brokers = brokers
        self._seed = scenario.seed
        self._delay_ns = sampler(scenario.network.delay_ms, self.stream("network"), NS_PER_MS)
        sizes = log_normal_table(section.record_bytes.p50, section.record_bytes.p75, 1.0)
        self.next_size = table_sampler(tuple(max(1, size) for size in sizes), self.stream("sizes"))
        self.next_key = self._key_sampler()
        self.partition_of = self._partitioner()

    def stream(self, purpose: str) -> Any:
        """The group's random stream for one purpose."""
        return stream(self._seed, "producers", self.name, purpose)

    def gap_samplers(self) -> tuple[Callable[[], int], Callable[[], int]]:
        """Samplers of the time to a producer's first record, and between records, in nanoseconds.

        The rate holds from the start on. With even spacing the first gap is a random part of one,
        or all producers would send at the same times.
        """
        assert self.section.rate is not None
        mean_ns = 1e9 / self.section.rate
        if self.section.spacing == "even":
            chance = self.stream("starts").random
            return lambda: int(chance() * mean_ns), lambda: round(mean_ns)
        gap_ns = table_sampler(exponential_table(mean_ns), self.stream("arrivals"))
        return gap_ns, gap_ns

    def connect(self, broker_id: int, on_break: Callable[[], None]) -> Connection:
        """A connection from one of the producers to a broker."""
        return Connection(
            self.engine,
            self._brokers[broker_id],
            self._delay_ns,
            self.section.response_timeout_ms,
            self.name,
            on_break,
        )

    def _key_sampler(self) -> Callable[[], int]:
        keys, chance = self.section.keys, self.stream("keys").random
        return lambda: int(chance() * keys)

    def _partitioner(self) -> Callable[[int, int, int], int]:
        count, result = len(self.topic_partitions), self.section.partitioner
        if result == "modulo":
            return lambda key, _sequence, _producer: key % count
        if result == "round-robin":
            return lambda _key, sequence, producer: (sequence + producer) % count
        if result == "random":
            chance = self.stream("partitions").random
            return lambda _key, _sequence, _producer: int(chance() * count)
        if self.section.keys > _MAX_TABLE_KEYS:
            return lambda key, _sequence, _producer: _hash(key) % count
        table = array("i", (_hash(key) % count for key in range(self.section.keys)))
        return lambda key, _sequence, _producer: table[key]


def _hash(key: int) -> int:
    return zlib.crc32(key.to_bytes(8, "big"))
