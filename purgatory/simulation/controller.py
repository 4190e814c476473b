"""The controller over the simulated network: its sessions time out, and its commands take time.

`purgatory.kafka.controller` makes the decisions. The controller fences a broker without heartbeats
after the session timeout, and sends commands to the brokers over the network, each in order.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from purgatory.kafka import TopicPartition
from purgatory.kafka.controller import Controller
from purgatory.kafka.topics import PartitionState
from purgatory.simulation.broker import Broker
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.invariants import CommitWatch
from purgatory.simulation.scenario import Scenario


class SimulatedController:
    """A controller, and the network between it and the brokers.

    Args:
        brokers: all brokers, by number.
        delay_ns: draws the network delay of a command to a broker.
        on_event: called for elections and changed in-sync sets.
    """

    def __init__(
        self,
        scenario: Scenario,
        engine: Engine,
        brokers: Sequence[Broker],
        watch: CommitWatch,
        delay_ns: Callable[[], int],
        on_event: Callable[..., None],
    ) -> None:
        self._session_timeout_ns = scenario.cluster.session_timeout_ms * NS_PER_MS
        self._engine = engine
        self._brokers = brokers
        self._on_event = on_event
        self.on_change: Callable[[], object] = lambda: None
        """Called when the state of a partition may have changed."""
        self._controller = Controller(
            [broker.id for broker in brokers], scenario.cluster.unclean_leader_election
        )
        self._controller.on_elected = self._record_election
        self._controller.blocks_isr = self._is_excluded_from_isr
        self._links = [
            _Link(broker, engine, self.partition_state, watch, delay_ns) for broker in brokers
        ]
        for link in self._links:
            self._controller.broker_up(link.broker.id, link)
        topic, count = scenario.topic, len(brokers)
        self._controller.create_assigned_topic(
            topic.name,
            [
                tuple((index + step) % count for step in range(topic.replication_factor))
                for index in range(topic.partitions)
            ],
            {},
        )
        self.assignments = dict(self._controller.partitions())
        self.topic_partitions = list(self.assignments)
        self._by_number = list(self.assignments.values())

    @property
    def elections(self) -> int:
        """The number of elections."""
        return self._controller.elections

    @property
    def unclean_elections(self) -> int:
        """The number of elections of leaders that were not in sync."""
        return self._controller.unclean_elections

    def partition_state(self, topic_partition: TopicPartition) -> PartitionState:
        """The controller's state of a partition."""
        return self.assignments[topic_partition]

    def partition_leader(self, partition: int) -> int:
        """The leader of a partition by its number, or -1."""
        return self._by_number[partition].leader

    def set_up(self) -> None:
        """Give all brokers their first roles, before the run."""
        for link in self._links:
            link.set_up(self.assignments)

    def change_isr(self, topic_partition: TopicPartition, epoch: int, isr: tuple[int, ...]) -> bool:
        """Change the in-sync set for a leader; False if it is no longer the leader, or a member is
        dead."""
        before = self.assignments[topic_partition].isr
        if not self._controller.change_isr(topic_partition, epoch, isr):
            return False
        self.on_change()
        self._on_event(
            "isr_changed", partition=str(topic_partition), before=list(before), now=list(isr)
        )
        return True

    def heartbeats_stopped(self, broker_id: int) -> None:
        """A broker stopped sending heartbeats: fence it after the session timeout."""
        silences = self._brokers[broker_id].silences
        self._engine.call_after(self._session_timeout_ns, self._expire_session, broker_id, silences)

    def fence_broker(self, broker_id: int) -> None:
        """Fence a broker at once."""
        self._controller.broker_down(broker_id)
        self.on_change()

    def broker_registered(self, broker_id: int) -> None:
        """A broker started, or resumed after a pause: send its roles."""
        self._controller.broker_up(broker_id, self._links[broker_id])
        self.on_change()

    def release_held_partitions(self, broker_id: int) -> None:
        """A new process is about to register: elect leaders for the old one's partitions.

        A new leader must have all acknowledged records, hence the ends of the logs.
        """
        self.fence_broker(broker_id)
        self._controller.reconcile_logs(
            {
                broker.id: broker.log_ends()
                for broker in self._brokers
                if broker.alive or broker.id == broker_id
            }
        )
        self.on_change()

    def record_committed(self) -> None:
        """Record the committed offsets of the leaders' logs, for `release_held_partitions`."""
        live = {broker.id: broker.manager for broker in self._brokers if broker.alive}
        self._controller.record_committed(live)

    def is_follower(self, topic_partition: TopicPartition, broker_id: int) -> bool:
        """Whether a broker follows a partition."""
        return self._controller.is_follower(topic_partition, broker_id)

    def remove_from_isr(self, topic_partition: TopicPartition, broker_id: int) -> None:
        """Remove a follower from a partition's in-sync set."""
        self._controller.remove_from_isr(topic_partition, broker_id)
        self.on_change()

    def _expire_session(self, broker_id: int, silences: int) -> None:
        broker = self._brokers[broker_id]
        if broker.silences == silences and (not broker.alive or broker.paused):
            self.fence_broker(broker_id)

    def _is_excluded_from_isr(self, topic_partition: TopicPartition, broker_id: int) -> bool:
        return self._brokers[broker_id].faults.blocks_isr(topic_partition, broker_id)

    def _record_election(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        self._on_event(
            "leader_elected",
            partition=str(topic_partition),
            leader=state.leader,
            epoch=state.leader_epoch,
            isr=list(state.isr),
            clean=state.is_clean,
        )


class _Link:
    """The link to one broker: commands arrive in order, and run in its process.

    Args:
        state_of: returns the controller's current state of a partition.
        delay_ns: draws the network delay of a command.
    """

    def __init__(
        self,
        broker: Broker,
        engine: Engine,
        state_of: Callable[[TopicPartition], PartitionState],
        watch: CommitWatch,
        delay_ns: Callable[[], int],
    ) -> None:
        self.broker = broker
        self._engine = engine
        self._state_of = state_of
        self._watch = watch
        self._delay_ns = delay_ns
        self._is_set_up = False
        self._arrival_ns = 0

    def set_up(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Give the broker its first roles at once."""
        self._is_set_up = True
        for topic_partition in topic_partitions:
            if self.broker.id in self._state_of(topic_partition).replicas:
                self._apply(topic_partition)

    def update_role(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Send the role; on arrival, the current one applies."""
        self._send(self._apply, topic_partition)

    def apply_settings(self, topic: str | None) -> None:
        """As `Member`: settings do not change in a simulation."""

    def drop_replica(self, topic_partition: TopicPartition) -> None:
        """As `Member`: replicas are not moved in a simulation."""

    def drop_topic(self, topic: str) -> None:
        """Send the deletion of a topic."""
        self._send(self.broker.manager.delete_topic, topic)

    def set_live_brokers(self, broker_ids: Sequence[int]) -> None:
        """Send the live brokers."""
        self._send(self._set_live_brokers, tuple(broker_ids))

    def _send(self, function: Callable[..., object], argument: object) -> None:
        if not self._is_set_up:
            return
        arrival_ns = max(self._engine.now_ns() + self._delay_ns(), self._arrival_ns + 1)
        self._arrival_ns = arrival_ns
        self._engine.call_at(arrival_ns, self.broker.submit, function, argument)

    def _set_live_brokers(self, broker_ids: Sequence[int]) -> None:
        self.broker.manager.set_live_brokers(broker_ids)

    def _apply(self, topic_partition: TopicPartition) -> None:
        """Apply the current role, unless the broker has it already."""
        broker, state = self.broker, self._state_of(topic_partition)
        partition = broker.manager.partition(topic_partition)
        if partition is not None and partition.leader_epoch >= state.leader_epoch:
            if state.leader == broker.id and set(partition.isr) != set(state.isr):
                self._elect_leader(topic_partition, state)
                broker.observe_commits((topic_partition,))
            return
        if state.leader == broker.id:
            self._elect_leader(topic_partition, state)
            replica = broker.manager.partition(topic_partition)
            assert replica is not None, "a leader hosts its partition"
            self._watch.record_election(
                topic_partition, state.leader_epoch, replica.log, clean=state.is_clean
            )
        else:
            broker.manager.become_follower(
                topic_partition, state.leader, state.leader_epoch, state.replicas
            )
        broker.followers.update_partition(topic_partition)
        broker.observe_commits((topic_partition,))

    def _elect_leader(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        manager = self.broker.manager
        manager.become_leader(topic_partition, state.leader_epoch, state.isr, state.replicas)
