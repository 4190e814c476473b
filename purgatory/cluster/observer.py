"""The observer of a running cluster: its topics, groups, transactions and faults.

Ten times a second the observer compares the state with the previous one, for the trace's table
`changes` and for the live feed; of many partitions some, the others in the next turns. Operations
are not polled: a purgatory notifies its observer of each completion, and a broker reports its state
by itself.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio

from purgatory.cluster.metadata import ClusterMetadata
from purgatory.cluster.traced_brokers import ElapsedClock
from purgatory.core.recent_errors import Logger
from purgatory.kafka import TopicPartition
from purgatory.kafka.faults.active_faults import ActiveFaults
from purgatory.kafka.topics import PartitionState
from purgatory.trace.change_rows import (
    FAULT,
    GROUP,
    HIGH_WATERMARK,
    LOG_END,
    PARTITION,
    TRANSACTION,
)
from purgatory.trace.observer import (
    TRANSACTION_STATES,
    CoordinatorState,
    FaultState,
    OnChange,
    PartitionRole,
    StateObserver,
)

_INTERVAL_S = 0.1
PARTITIONS_PER_ITERATION = 200
"""The number of partitions that are compared in a turn, beside new ones."""

_log = Logger("purgatory.cluster")


def observe_faults(observer: StateObserver, faults: ActiveFaults, clock: ElapsedClock) -> None:
    """Compare the faults with the previous ones. O(active and recent faults)."""
    by_number = {fault.number: fault for fault in (*faults.recent, *faults.active)}
    states = {
        number: FaultState.of(fault, clock.us_of_s) for number, fault in sorted(by_number.items())
    }
    for number, state in states.items():
        observer.observe(FAULT, number, state)
    observer.last_values[FAULT] = states  # faults that ended long ago are dropped


class ClusterObserver:
    """Reports changes of a cluster, beginning with its whole state.

    Args:
        cluster: the observed cluster.
        clock: measures when transactions and faults began.
        on_change: called with each change.
    """

    def __init__(self, cluster: ClusterMetadata, clock: ElapsedClock, on_change: OnChange) -> None:
        self.state = StateObserver(on_change)
        self._cluster = cluster
        self._clock = clock
        self._next = 0

    async def run(self) -> None:
        """Observe in a loop, until cancelled."""
        while True:
            self.observe_or_log()
            await asyncio.sleep(_INTERVAL_S)

    def observe_or_log(self) -> None:
        """As `observe`; an error is logged."""
        try:
            self.observe()
        except Exception as error:
            _log.error("trace_failed", exc_info=error)

    def observe(self) -> None:
        """Compare the state with the previous one.

        O(partitions + 200 * replicas + groups + transactions).
        """
        self._observe_partitions()
        self.state.observe_all(GROUP, self._groups())
        self.state.observe_all(TRANSACTION, self._transactions())
        observe_faults(self.state, self._cluster.fault, self._clock)

    def _observe_partitions(self) -> None:
        partitions, known = self._cluster.controller.partitions(), self.state.last_values[PARTITION]
        begin = self._next if self._next < len(partitions) else 0
        self._next = begin + PARTITIONS_PER_ITERATION
        new = [entry for entry in partitions if entry[0] not in known]
        for topic_partition, state in dict([*new, *partitions[begin : self._next]]).items():
            self._observe_partition(topic_partition, state)
        if len(known) > len(partitions):
            there = dict(partitions)
            last_values = self.state.last_values
            for topic_partition in [key for key in known if key not in there]:
                last_values[HIGH_WATERMARK].pop(topic_partition, None)
                for broker in self._cluster.brokers:
                    last_values[LOG_END].pop((topic_partition, broker), None)
                self.state.observe(PARTITION, topic_partition, None)

    def _observe_partition(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        role = PartitionRole(
            state.leader,
            state.leader_epoch,
            state.replicas,
            tuple(sorted(state.isr)),
            self._cluster.controller.topics[topic_partition.topic].internal,
        )
        high_watermark, ends = replica_offsets(self._cluster, topic_partition, state)
        observe = self.state.observe
        observe(PARTITION, topic_partition, role)
        observe(HIGH_WATERMARK, topic_partition, high_watermark)
        leaderless = (broker for broker in self._cluster.brokers if broker not in ends)
        for broker in (*leaderless, *ends):
            observe(LOG_END, (topic_partition, broker), ends.get(broker))

    def _groups(self) -> dict[str, CoordinatorState]:
        found = {}
        for broker in self._cluster.brokers.values():
            if not broker.alive:
                continue
            groups = broker.groups
            for group_state in groups.classic.groups.values():
                found[group_state.group_id] = CoordinatorState(
                    broker.broker_id,
                    group_state.state.value,
                    group_state.generation,
                    tuple(group_state.members),
                )
            for group in (*groups.consumers.groups.values(), *groups.shares.groups.values()):
                found[group.group_id] = CoordinatorState(
                    broker.broker_id, group.state.value, group.epoch, tuple(group.members)
                )
        return found

    def _transactions(self) -> dict[str, CoordinatorState]:
        found = {}
        for broker in self._cluster.brokers.values():
            for listing in broker.transactions.all_transactions() if broker.alive else ():
                record = listing.record
                if record.state in TRANSACTION_STATES:
                    since_us = self._clock.us_of_wall_s(record.start_ms / 1_000)
                    found[listing.transactional_id] = CoordinatorState(
                        None,
                        TRANSACTION_STATES[record.state],
                        record.producer_epoch,
                        None,
                        since_us,
                    )
        return found


def replica_offsets(
    cluster: ClusterMetadata, topic_partition: TopicPartition, state: PartitionState
) -> tuple[int | None, dict[int, int]]:
    """Return a partition's high watermark and its log ends on live brokers."""
    high_watermark, ends = None, {}
    for broker_id in state.replicas:
        broker = cluster.live_broker(broker_id)
        replica = None if broker is None else broker.manager.partition(topic_partition)
        if replica is not None:
            ends[broker_id] = replica.log_end_offset
            if broker_id == state.leader:
                high_watermark = replica.high_watermark
    return high_watermark, ends
