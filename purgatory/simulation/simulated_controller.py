"""The controller: who leads which partition, who is in sync, and what happens when a broker goes.

It hears of a broker's silence after the session timeout, elects a new leader from the in-sync set
(in the order of the assignment) and tells the brokers, over the network and in order. Without a
living member of the set a partition has no leader until one comes back, unless unclean elections
are allowed: then any living replica leads, and what it lacks is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from purgatory.kafka import TopicPartition
from purgatory.simulation.commit_watch import CommitWatch
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.scenario import Scenario
from purgatory.simulation.simulated_broker import Broker

NO_LEADER = -1


class Assignment:
    """The state of one partition, as the controller has it."""

    __slots__ = ("clean", "epoch", "isr", "leader", "replicas")

    def __init__(self, replicas: Sequence[int]) -> None:
        self.replicas = tuple(replicas)
        self.leader = self.replicas[0]
        self.isr = self.replicas
        self.epoch = 0
        self.clean = True


class Controller:
    """Decides about leaders and in-sync sets.

    Args:
        scenario: the settings.
        engine: runs its events.
        brokers: all brokers, by number.
        watch: is told of each election.
        delay_ns: draws the network delay of a command to a broker.
        on_event: is told of elections and changed in-sync sets.
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
        self.elections = 0
        self.unclean_elections = 0
        self._cluster = scenario.cluster
        self._engine = engine
        self._brokers = brokers
        self._watch = watch
        self._delay_ns = delay_ns
        self._on_event = on_event
        self._live = [broker.id for broker in brokers]
        self._command_ns = [0] * len(brokers)
        topic, count = scenario.topic, len(brokers)
        self.assignments = {
            TopicPartition(topic.name, index): Assignment(
                [(index + step) % count for step in range(topic.replication_factor)]
            )
            for index in range(topic.partitions)
        }
        self._by_number = list(self.assignments.values())

    def leader_of(self, partition: int) -> int:
        """The broker that leads a partition, or -1: what a client learns when it asks."""
        return self._by_number[partition].leader

    def set_up(self) -> None:
        """Tell all brokers their first roles, before anything else happens."""
        for broker in self._brokers:
            for topic_partition, assignment in self.assignments.items():
                if broker.id in assignment.replicas:
                    self._apply(broker, topic_partition)

    def change_isr(
        self, broker_id: int, topic_partition: TopicPartition, epoch: int, wanted: tuple[int, ...]
    ) -> bool:
        """A leader asks for another in-sync set.

        Returns:
            False if it leads no more, or wants a broker in that is taken for dead.
        """
        assignment = self.assignments[topic_partition]
        if assignment.leader != broker_id or assignment.epoch != epoch:
            return False
        if any(member not in self._live for member in wanted):
            return False
        self._on_event(
            "isr_changed",
            partition=str(topic_partition),
            before=list(assignment.isr),
            now=list(wanted),
        )
        assignment.isr = wanted
        return True

    def broker_silent(self, broker_id: int) -> None:
        """A broker stopped sending heartbeats: it is taken for dead after the session timeout."""
        timeout_ns = self._cluster.session_timeout_ms * NS_PER_MS
        silences = self._brokers[broker_id].silences
        self._engine.after(timeout_ns, self._session_expired, broker_id, silences)

    def broker_registered(self, broker_id: int) -> None:
        """A broker started, or came back from a pause: tell it its roles."""
        if broker_id not in self._live:
            self._live.append(broker_id)
            self._live.sort()
            self._tell_live()
        for topic_partition, assignment in self.assignments.items():
            if broker_id not in assignment.replicas:
                continue
            if assignment.leader == NO_LEADER:
                self._elect(topic_partition, assignment)
            self._command(self._brokers[broker_id], self._apply, topic_partition)

    def broker_restarted(self, broker_id: int) -> None:
        """A new process registers: what the old one led or had in sync is up to an election."""
        self._broker_lost(broker_id)
        self.broker_registered(broker_id)

    def _session_expired(self, broker_id: int, silences: int) -> None:
        broker = self._brokers[broker_id]
        if broker.silences == silences and (not broker.alive or broker.paused):
            self._broker_lost(broker_id)

    def _broker_lost(self, broker_id: int) -> None:
        if broker_id not in self._live:
            return
        self._live.remove(broker_id)
        self._tell_live()
        for topic_partition, assignment in self.assignments.items():
            changed = broker_id in assignment.isr and len(assignment.isr) > 1
            if changed:
                assignment.isr = tuple(one for one in assignment.isr if one != broker_id)
            if assignment.leader == broker_id:
                self._elect(topic_partition, assignment)
            elif changed:
                assignment.epoch += 1
                self._tell(topic_partition, assignment)

    def _elect(self, topic_partition: TopicPartition, assignment: Assignment) -> None:
        alive = [one for one in assignment.replicas if one in self._live]
        in_sync = [one for one in alive if one in assignment.isr]
        assignment.epoch += 1
        assignment.clean = True
        if in_sync:
            assignment.leader = in_sync[0]
            self.elections += 1
        elif alive and self._cluster.unclean_leader_election:
            assignment.leader = alive[0]
            assignment.isr = (alive[0],)
            assignment.clean = False
            self.elections += 1
            self.unclean_elections += 1
        else:
            assignment.leader = NO_LEADER
        self._on_event(
            "leader_elected",
            partition=str(topic_partition),
            leader=assignment.leader,
            epoch=assignment.epoch,
            isr=list(assignment.isr),
            clean=assignment.clean,
        )
        self._tell(topic_partition, assignment)

    def _tell(self, topic_partition: TopicPartition, assignment: Assignment) -> None:
        for broker_id in assignment.replicas:
            if broker_id in self._live:
                self._command(self._brokers[broker_id], self._apply, topic_partition)

    def _tell_live(self) -> None:
        live = tuple(self._live)
        for broker_id in live:
            broker = self._brokers[broker_id]
            self._command(broker, _set_live_brokers, live)

    def _command(self, broker: Broker, function: Callable[..., object], argument: object) -> None:
        """Send a command; commands to one broker arrive in order, and only in its process."""
        arrival_ns = self._engine.now_ns() + self._delay_ns()
        arrival_ns = max(arrival_ns, self._command_ns[broker.id] + 1)
        self._command_ns[broker.id] = arrival_ns
        self._engine.at(arrival_ns, broker.submit, function, broker, argument)

    def _apply(self, broker: Broker, topic_partition: TopicPartition) -> None:
        """Give a broker its role in a partition as it is now, which may be newer than the command.

        A role that it has already changes nothing.
        """
        assignment = self.assignments[topic_partition]
        partition = broker.manager.partition(topic_partition)
        if partition is not None and partition.leader_epoch >= assignment.epoch:
            return
        if assignment.leader == broker.id:
            broker.manager.become_leader(
                topic_partition, assignment.epoch, assignment.isr, assignment.replicas
            )
            led = broker.manager.partition(topic_partition)
            assert led is not None, "who leads a partition hosts it"
            self._watch.elected(topic_partition, assignment.epoch, led.log, clean=assignment.clean)
        else:
            broker.manager.become_follower(
                topic_partition, assignment.leader, assignment.epoch, assignment.replicas
            )
        broker.followers.assigned(topic_partition, assignment.leader)
        broker.look((topic_partition,))


def _set_live_brokers(broker: Broker, live: tuple[int, ...]) -> None:
    broker.manager.set_live_brokers(live)
