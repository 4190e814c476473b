"""The faults of a run, at their times, and their effects on the simulated brokers.

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
    """Injects faults into a simulated cluster.

    Args:
        scenario: its faults are scheduled.
        brokers: all brokers, by number.
        on_event: called for each fault that begins.
        changes: records begins and ends in the trace.
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
            lambda seconds, function: engine.call_after(round(seconds * _NS_PER_S), function),
            stream(scenario.seed, "faults"),
        )
        self.begun_count = 0
        self._on_event = on_event
        self._changes = changes
        self._engine = engine
        self._brokers = brokers
        self._controller = controller
        for section in scenario.faults:
            engine.call_at(section.at_ms * NS_PER_MS, self.begin, section.fault)

    def begin(self, fault: Fault) -> ActiveFault | None:
        """Begin a fault; None if it doesn't apply."""
        self.begun_count += 1
        for_s = {} if fault.for_s is None else {"for_s": fault.for_s}
        self._on_event(fault.kind, **fault.settings, **for_s)
        if not self._is_applicable(fault):
            return None
        if isinstance(fault, Kill):
            self._controller.record_committed()
            self._brokers[fault.broker].kill()
            self._controller.heartbeats_stopped(fault.broker)
        active_fault = self._begin_fault(fault)
        match fault:
            case Pause(broker=broker) if not self._brokers[broker].paused:
                self._brokers[broker].pause()
                self._controller.heartbeats_stopped(broker)
            case ShrinkIsr():
                topic_partition = TopicPartition(fault.topic, fault.partition)
                self._controller.remove_from_isr(topic_partition, fault.broker)
            case CutConnections():
                for broker in fault.brokers or range(len(self._brokers)):
                    active_fault.uses += self._brokers[broker].cut_connections()
                active_fault.end()
        return active_fault

    def _is_applicable(self, fault: Fault) -> bool:
        """Whether it has an effect: a dead broker can't be killed, a leader can't leave the ISR."""
        match fault:
            case Kill(broker=broker) | Pause(broker=broker):
                return self._brokers[broker].alive
            case ShrinkIsr():
                topic_partition = TopicPartition(fault.topic, fault.partition)
                return self._controller.is_follower(topic_partition, fault.broker)
        return True

    def _on_end(self, active_fault: ActiveFault) -> None:
        super()._on_end(active_fault)
        match active_fault.fault:
            case Kill():
                self._revive(active_fault.fault)
            case Pause(broker=number):
                broker = self._brokers[number]
                if broker.paused and not self.is_paused(number):
                    broker.resume()
                    self._controller.broker_registered(number)

    def _revive(self, fault: Kill) -> None:
        broker = self._brokers[fault.broker]
        if not broker.alive:
            broker.lose_records(fault.lost_records)
            self._controller.release_held_partitions(fault.broker)
            broker.start()
            self._controller.broker_registered(fault.broker)

    def _on_change(self, active_fault: ActiveFault) -> None:
        if self._changes is not None:
            self._changes.record_fault(active_fault)
        for broker in self._brokers:
            broker.followers.on_faults_changed()
