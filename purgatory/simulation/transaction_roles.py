"""What brokers need of a run to coordinate transactions, and what its trace tells of these.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count

from purgatory.kafka import (
    CommittedOffset,
    OffsetKey,
    TopicPartition,
    TransactionCoordinator,
    TransactionRecord,
)
from purgatory.simulation.engine import NS_PER_US, Engine
from purgatory.simulation.scenario import Scenario
from purgatory.simulation.simulated_broker import Broker
from purgatory.simulation.simulated_controller import SimulatedController
from purgatory.simulation.simulated_transactions import (
    SimulatedMarkers,
    transactions_partition_of,
)
from purgatory.trace.table_rows import CommitRow
from purgatory.trace.trace_tables import Tables
from purgatory.trace.traced_transactions import TracedTransactions


class TransactionRoles:
    """Lets the brokers of a run coordinate transactions.

    Args:
        scenario: the settings.
        engine: runs the events.
        brokers: all brokers, by number.
        controller: tells who leads.
        rows: takes the rows of the trace; None: none is written.
    """

    def __init__(
        self,
        scenario: Scenario,
        engine: Engine,
        brokers: Sequence[Broker],
        controller: SimulatedController,
        rows: Tables | None,
    ) -> None:
        self.traced = None if rows is None else TracedTransactions(rows.transaction)
        self._engine = engine
        self._brokers = brokers
        self._controller = controller
        self._rows = rows
        # None that a producer has who numbers its batches by its own number.
        ids = count(sum(section.count for section in scenario.producers))
        for broker in brokers:
            broker.coordinator_of = self._coordinator_of
            broker.new_producer_id = partial(next, ids)
            broker.markers = SimulatedMarkers(broker, brokers, engine, scenario, self._leader_of)
            if rows is not None:
                broker.on_record, broker.on_offset_ended = self._recorded, self._offset_ended

    def _leader_of(self, topic_partition: TopicPartition) -> int | None:
        state = self._controller.assignments.get(topic_partition)
        return None if state is None else state.leader

    def _coordinator_of(self, transactional_id: str) -> TransactionCoordinator | None:
        leader = self._leader_of(transactions_partition_of(transactional_id))
        if leader is None or leader < 0 or not self._brokers[leader].alive:
            return None
        return self._brokers[leader].transactions

    def _recorded(self, transactional_id: str, record: TransactionRecord) -> None:
        assert self.traced is not None, "there is a trace"
        self.traced.note(transactional_id, record, self._engine.now_ns() // NS_PER_US)

    def _offset_ended(
        self, producer_id: int, key: OffsetKey, offset: CommittedOffset, held: bool
    ) -> None:
        assert self.traced is not None and self._rows is not None, "there is a trace"
        number, now_us = self.traced.of_marker(producer_id), self._engine.now_ns() // NS_PER_US
        self._rows.commit(CommitRow(*key, offset.offset, now_us, number, held))

    def finish(self) -> None:
        """Write what the trace tells of transactions that are not over."""
        if self.traced is not None:
            self.traced.close()
