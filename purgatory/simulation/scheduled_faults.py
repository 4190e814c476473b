"""What goes wrong in a run, at its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from purgatory.simulation.distributions import stream
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.scenario import (
    BrokerDeath,
    BrokerPause,
    Fault,
    FollowerStall,
    MessageLoss,
    Scenario,
)

if TYPE_CHECKING:
    from purgatory.simulation.network import Request
    from purgatory.simulation.simulated_broker import Broker
    from purgatory.simulation.simulated_controller import SimulatedController


class Loss:
    """A network that loses some messages between producers and a broker.

    Args:
        fault: which messages, and how many.
        random: decides which of them, if not all.
    """

    def __init__(self, fault: MessageLoss, random: Random) -> None:
        self._fault = fault
        self._random = random
        self._left = fault.count

    def hits(self, kind: str, request: Request) -> bool:
        """Whether this message is lost."""
        fault = self._fault
        if fault.kind != kind or not self._left or request.kind != "producer":
            return False
        if fault.group is not None and request.connection.group != fault.group:
            return False
        if fault.share < 1 and self._random.random() >= fault.share:
            return False
        self._left -= 1
        return True


class Faults:
    """Lets the scenario's faults happen.

    Args:
        scenario: names them.
        engine: runs them.
        brokers: all brokers, by number.
        controller: hears of brokers that go and come.
        on_event: is told of each fault that begins.
    """

    def __init__(
        self,
        scenario: Scenario,
        engine: Engine,
        brokers: Sequence[Broker],
        controller: SimulatedController,
        on_event: Callable[..., None],
    ) -> None:
        self.begun = 0
        self._on_event = on_event
        self._engine = engine
        self._brokers = brokers
        self._controller = controller
        self._stalls = [0] * len(brokers)
        for number, fault in enumerate(scenario.faults):
            begin: Callable[[], None]
            if isinstance(fault, FollowerStall):
                begin = self._stall(fault)
            elif isinstance(fault, BrokerDeath):
                begin = self._death(fault)
            elif isinstance(fault, BrokerPause):
                begin = self._pause(fault)
            else:
                begin = self._loss(fault, stream(scenario.seed, "fault", number))
            engine.at(fault.at_ms * NS_PER_MS, self._begin, fault, begin)

    def _begin(self, fault: Fault, begin: Callable[[], None]) -> None:
        self.begun += 1
        fields = fault.model_dump(exclude={"kind", "at_ms"}, exclude_none=True)
        self._on_event(fault.kind.replace("-", "_"), **fields)
        begin()

    def _stall(self, fault: FollowerStall) -> Callable[[], None]:
        followers = self._brokers[fault.broker].followers

        def begin() -> None:
            self._stalls[fault.broker] += 1
            followers.stall()
            self._engine.after(fault.duration_ms * NS_PER_MS, end)

        def end() -> None:
            # Stalls may overlap: the last one that ends, ends it.
            self._stalls[fault.broker] -= 1
            if not self._stalls[fault.broker]:
                followers.go_on()

        return begin

    def _death(self, fault: BrokerDeath) -> Callable[[], None]:
        broker = self._brokers[fault.broker]

        def begin() -> None:
            if not broker.alive:
                return
            broker.die()
            self._controller.broker_silent(broker.id)
            if fault.duration_ms is not None:
                self._engine.after(fault.duration_ms * NS_PER_MS, come_back)

        def come_back() -> None:
            broker.start()
            self._controller.broker_restarted(broker.id)

        return begin

    def _pause(self, fault: BrokerPause) -> Callable[[], None]:
        broker = self._brokers[fault.broker]

        def begin() -> None:
            if not broker.alive or broker.paused:
                return
            broker.pause()
            until_ns = self._engine.now_ns() + fault.duration_ms * NS_PER_MS
            self._controller.broker_silent(broker.id)
            self._engine.at(until_ns, end, broker.process_number)

        def end(process_number: int) -> None:
            if broker.process_number == process_number and broker.paused:
                broker.resume()
                self._controller.broker_registered(broker.id)

        return begin

    def _loss(self, fault: MessageLoss, random: Random) -> Callable[[], None]:
        loss = Loss(fault, random)
        concerned = [one for one in self._brokers if fault.broker in (None, one.id)]

        def begin() -> None:
            for broker in concerned:
                broker.losses.append(loss)
            if fault.duration_ms is not None:
                self._engine.after(fault.duration_ms * NS_PER_MS, end)

        def end() -> None:
            for broker in concerned:
                broker.losses.remove(loss)

        return begin
