"""The faults of a run: each at its time, and its effect on the simulated brokers.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from purgatory.kafka import TopicPartition
from purgatory.kafka.faults import CutConnections, Fault, Kill, Pause, ShrinkIsr
from purgatory.kafka.faults.active_faults import ActiveFault
from purgatory.simulation.broker import Broker
from purgatory.simulation.controller import SimulatedController
from purgatory.simulation.distributions import stream
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.network import NetworkFaults
from purgatory.simulation.scenario import Scenario
from purgatory.simulation.trace import ChangeRecorder

_NS_PER_S = 1_000_000_000


class SimulatedFaults(NetworkFaults):
    """Puts faults into a simulated cluster.

    Args:
        scenario: whose faults come at their times.
        engine: runs them.
        brokers: all brokers, by number.
        controller: hears of brokers that go and come.
        on_event: is told of each fault that begins.
        changes: records for the trace which begin and end.
    """

    def __init__(
        self,
        scenario: Scenario,
        engine: Engine,
        brokers: Sequence[Broker],
        controller: SimulatedController,
        on_event: Callable[..., None],
        changes: ChangeRecorder | None = None,
    ) -> None:
        super().__init__(
            lambda: engine.now_ns() / _NS_PER_S,
            lambda seconds, function: engine.after(round(seconds * _NS_PER_S), function),
            stream(scenario.seed, "faults"),
        )
        self.begun = 0
        """How many faults have begun."""
        self._on_event = on_event
        self._changes = changes
        self._engine = engine
        self._brokers = brokers
        self._controller = controller
        for section in scenario.faults:
            engine.at(section.at_ms * NS_PER_MS, self.begin, section.fault)

    def begin(self, fault: Fault) -> ActiveFault | None:
        """Begin a fault; None where there is none to be (`_makes_sense`)."""
        self.begun += 1
        for_s = {} if fault.for_s is None else {"for_s": fault.for_s}
        self._on_event(fault.kind, **fault.settings, **for_s)
        if not self._makes_sense(fault):
            return None
        if isinstance(fault, Kill):
            self._controller.record_committed()
            self._brokers[fault.broker].die()
            self._controller.broker_silent(fault.broker)
        begun = self._begin_fault(fault)
        match fault:
            case Pause(broker=broker) if not self._brokers[broker].paused:
                self._brokers[broker].pause()
                self._controller.broker_silent(broker)
            case ShrinkIsr():
                topic_partition = TopicPartition(fault.topic, fault.partition)
                self._controller.put_out_of_sync(topic_partition, fault.broker)
            case CutConnections():
                for broker in fault.brokers or range(len(self._brokers)):
                    begun.uses += self._brokers[broker].cut_connections()
                begun.end()
        return begun

    def _makes_sense(self, fault: Fault) -> bool:
        """Whether it changes anything: a dead broker can't be killed, nor a leader be put out."""
        match fault:
            case Kill(broker=broker) | Pause(broker=broker):
                return self._brokers[broker].alive
            case ShrinkIsr():
                topic_partition = TopicPartition(fault.topic, fault.partition)
                return self._controller.is_replica_beside_leader(topic_partition, fault.broker)
        return True

    def _ended(self, begun: ActiveFault) -> None:
        super()._ended(begun)
        match begun.fault:
            case Kill():
                self._revive(begun.fault)
            case Pause(broker=number):
                broker = self._brokers[number]
                if broker.paused and not self.is_paused(number):
                    broker.resume()
                    self._controller.broker_registered(number)

    def _revive(self, fault: Kill) -> None:
        broker = self._brokers[fault.broker]
        if not broker.alive:
            broker.lose_records(fault.lost_records)
            self._controller.broker_restarts(fault.broker)
            broker.start()
            self._controller.broker_registered(fault.broker)

    def _changed(self, begun: ActiveFault) -> None:
        if self._changes is not None:
            self._changes.fault(begun)
        for broker in self._brokers:
            broker.followers.faults_changed()
            if broker.markers is not None:
                broker.markers.faults_changed()
