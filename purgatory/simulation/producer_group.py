"""The settings, random draws and counts that producers of one group share.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from purgatory.kafka import EndTransaction, TopicPartition
from purgatory.simulation.controller import SimulatedController
from purgatory.simulation.distributions import exponential_table, sampler, stream, table_sampler
from purgatory.simulation.engine import NS_PER_MS, NS_PER_US, Engine
from purgatory.simulation.invariants import Ledger, TransactionWatch
from purgatory.simulation.latencies import Latencies, Waits
from purgatory.simulation.messages import (
    Batch,
    GroupCounts,
    GroupLedgers,
    SentTransaction,
    TransactionalBatch,
    TransactionCounts,
)
from purgatory.simulation.network import Connection, Server
from purgatory.simulation.scenario import ProducersSection, Scenario, TransactionsSection
from purgatory.trace.table_rows import SendRow
from purgatory.trace.traced_transactions import TracedTransactions

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
        self.books = GroupLedgers(self.name, self.acks, self.counts)
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


class TransactionalGroup(ProducerGroup):
    """A group of producers that send in transactions.

    ``commit_waits`` are the times from the request to commit until its response, ``whole_waits``
    those of committed transactions from their begin on.

    Args:
        settings: of their transactions.
        watch: follows these.
        traced: numbers them in the trace; None: none is written.
        arguments: as of `ProducerGroup`.
    """

    def __init__(
        self,
        settings: TransactionsSection,
        watch: TransactionWatch,
        traced: TracedTransactions | None,
        *arguments: Any,
    ) -> None:
        super().__init__(*arguments)
        self._traced = traced
        self.settings = settings
        self.watch = watch
        self.transaction_counts = TransactionCounts()
        self.commit_waits = Waits()
        self.whole_waits = Waits()
        self.zombie_ns = sampler(settings.zombie_ms, self.stream("pauses"), NS_PER_MS)
        self._zombie_chance = self.stream("zombies").random
        self._end_chance = self.stream("ends").random

    def transaction_of(self, batch: Batch) -> tuple[Any, ...]:
        """What the trace says of the transaction in which a batch is sent."""
        if self._traced is None or not isinstance(batch, TransactionalBatch):
            return ()
        transactional_id, producer = batch.transaction.transactional_id, batch.transaction.producer
        return (transactional_id, *self._traced.of_send(transactional_id, producer))

    def leader_of(self, place: TopicPartition) -> int:
        """The broker that leads a partition, or -1."""
        return self.controller.assignment_of(place).leader

    def still_after(self) -> int | None:
        """After how many of its requests a transaction's producer is to stand still, if it is."""
        if self._zombie_chance() >= self.settings.zombies:
            return None
        return 1 + int(self._zombie_chance() * self.settings.requests)

    def next_end(self) -> EndTransaction:
        """Whether the next transaction is to be committed or aborted."""
        is_aborted = self._end_chance() < self.settings.aborted
        return EndTransaction.ABORT if is_aborted else EndTransaction.COMMIT

    def lose(self, batch: Batch) -> None:
        """Record a batch that was given up."""
        self.counts.failed += len(batch.messages)
        if batch.sent_unsure:
            self.counts.unknown += len(batch.messages)

    def note_end(self, transaction: SentTransaction, how: EndTransaction, asked_ns: int) -> None:
        """Count a transaction that is ended as was asked, and its times."""
        if how is EndTransaction.ABORT:
            self.transaction_counts.aborted += 1
            return
        self.transaction_counts.committed += 1
        now_us = self.engine.now_ns() // NS_PER_US
        self.commit_waits.add(now_us - asked_ns // NS_PER_US)
        self.whole_waits.add(now_us - transaction.begun_ns // NS_PER_US)
