"""The observer of a running cluster: its topics, groups, transactions and faults.

Ten times a second it compares the state with the one before, for the trace's table `changes` and
for the live feed; of many partitions some, the others in the next turns. Operations are not polled:
a purgatory reports each that settles to its ``on_completed``, and the state of a broker is reported
by itself.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.operation import DelayedOperation
from purgatory.core.recent_errors import Logger
from purgatory.kafka import DelayedFetch, TopicPartition
from purgatory.kafka.faults.active_faults import ActiveFaults
from purgatory.kafka.share_groups.delayed_share_fetch import DelayedShareFetch
from purgatory.kafka.share_groups.share_partition import DelayedAcquisitionLock
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

if TYPE_CHECKING:
    from purgatory.cluster.broker import Broker
    from purgatory.cluster.cluster import Cluster
    from purgatory.cluster.metadata import ClusterMetadata

_INTERVAL_S = 0.1
PARTITIONS_PER_ITERATION = 200
"""How many partitions are compared in a turn, and all new ones besides."""

_NS_PER_MS = 1_000_000
_NS_PER_US = 1_000
_KINDS_BY_PURGATORY = {
    "Produce": "producer",
    **dict.fromkeys(("Rebalance", "Sync", "Heartbeat"), "member"),
    **dict.fromkeys(("TransactionMarker", "TransactionTimeout"), "transaction"),
    **dict.fromkeys(("DeleteRecords", "ElectLeader", "Topic", "AlterAcls"), "admin"),
}
_log = Logger("purgatory.cluster")


def operation_keys(operation: DelayedOperation) -> tuple[Any, ...]:
    """Return the keys that it waits on.

    Those of a fetch say also which end of the log it waits for, and one that completes at once is
    watched under nothing.
    """
    if isinstance(operation, DelayedFetch | DelayedShareFetch | DelayedAcquisitionLock):
        return tuple(operation.topic_partitions)
    return operation._op_keys


def operation_kind(purgatory: str, operation: DelayedOperation) -> str:
    """Return the kind of an operation's client: producer, follower, consumer, member, ..."""
    if isinstance(operation, DelayedFetch):
        return "consumer" if operation.params.replica_id < 0 else "follower"
    return _KINDS_BY_PURGATORY.get(purgatory, "consumer")


class ElapsedClock:
    """Measures the time since a trace or a live feed began, in microseconds.

    Its origin is a whole millisecond, as timers count: what is due lies in the bucket it lay in.
    """

    def __init__(self) -> None:
        self.start_ms, since_ns = divmod(time.monotonic_ns(), _NS_PER_MS)
        """What the timers' clocks showed then."""
        self._start_wall_s = time.time() - since_ns / 1_000_000_000

    def now_us(self) -> int:
        """Return the time now."""
        return self.us_of_ns(time.monotonic_ns())

    def us_of_ns(self, monotonic_ns: int) -> int:
        """Return the time at which the timers' clocks showed this."""
        return (monotonic_ns - self.start_ms * _NS_PER_MS) // _NS_PER_US

    def us_of_wall_s(self, seconds: float) -> int:
        """Return the time at which the time of day was this, in seconds since 1970."""
        return int((seconds - self._start_wall_s) * 1_000_000)


def observe_faults(observer: StateObserver, faults: ActiveFaults, clock: ElapsedClock) -> None:
    """Compare the faults with those before. O(active and recent faults)."""
    by_number = {fault.number: fault for fault in (*faults.recent, *faults.active)}
    states = {
        number: FaultState.of(fault, clock.us_of_wall_s)
        for number, fault in sorted(by_number.items())
    }
    for number, state in states.items():
        observer.observe(FAULT, number, state)
    observer.last_values[FAULT] = states  # those that ended long ago are forgotten


class ClusterObserver:
    """Reports changes of a cluster, beginning with its whole state.

    Args:
        cluster: which.
        clock: measures when transactions and faults began.
        on_change: is called with each change.
    """

    def __init__(self, cluster: ClusterMetadata, clock: ElapsedClock, on_change: OnChange) -> None:
        self.state = StateObserver(on_change)
        self._cluster = cluster
        self._clock = clock
        self._next = 0

    async def run(self) -> None:
        """Observe again and again."""
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
        """Compare the state with the one before.

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
        high_watermark, ends = _offsets(self._cluster, topic_partition, state)
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
            for group_state in groups.groups.values():
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


def _offsets(
    cluster: ClusterMetadata, topic_partition: TopicPartition, state: PartitionState
) -> tuple[int | None, dict[int, int]]:
    """Return a partition's high watermark and its replicas' log ends, of brokers that live."""
    high_watermark, ends = None, {}
    for broker_id in state.replicas:
        broker = cluster.live_broker(broker_id)
        replica = None if broker is None else broker.manager.partition(topic_partition)
        if replica is not None:
            ends[broker_id] = replica.log_end_offset
            if broker_id == state.leader:
                high_watermark = replica.high_watermark
    return high_watermark, ends


def cluster_state(cluster: Cluster) -> dict[str, Any]:
    """Return brokers, topics, groups, purgatories and faults. O(partitions)."""
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "elections": cluster.controller.elections,
        "brokers": [_broker(broker) for broker in cluster.brokers.values()],
        "topics": [
            {
                "name": topic.name,
                "internal": topic.internal,
                "settings": topic.configs,
                "partitions": [
                    _partition(cluster, TopicPartition(topic.name, number), state)
                    for number, state in enumerate(topic.partitions)
                ],
            }
            for topic in cluster.controller.topics.values()
        ],
        "groups": [
            {
                "name": group.group_id,
                "broker": broker.broker_id,
                "state": group.state.value,
                "generation": group.generation,
                "members": list(group.members),
            }
            for broker in cluster.brokers.values()
            if broker.alive
            for group in broker.groups.groups.values()
        ],
        "faults": [fault.as_dict() for fault in cluster.fault.recent],
    }


def _partition(
    cluster: Cluster, topic_partition: TopicPartition, state: PartitionState
) -> dict[str, Any]:
    high_watermark, ends = _offsets(cluster, topic_partition, state)
    leader = cluster.live_broker(state.leader)
    led = None if leader is None else leader.manager.partition(topic_partition)
    return {
        "partition": topic_partition.partition,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "replicas": state.replicas,
        "isr": state.isr,
        "high_watermark": high_watermark,
        "log_end_offsets": ends,
        "log_start_offset": None if led is None else led.log_start_offset,
    }


def _broker(broker: Broker) -> dict[str, Any]:
    return {
        "id": broker.broker_id,
        "host": broker.host,
        "port": broker.port,
        "alive": broker.alive,
        "connections": broker.connection_count,
        "purgatories": [_purgatory(purgatory) for purgatory in broker.purgatories]
        if broker.alive
        else [],
    }


def _purgatory(purgatory: AsyncPurgatory) -> dict[str, Any]:
    return {
        "name": purgatory.name,
        "pending": purgatory.num_delayed,
        "oldest_ms": purgatory.core.oldest_pending_ns // _NS_PER_MS,
        "outcomes": purgatory.counters.outcomes,
    }
