"""Connections: messages that take their time, in order, and get lost when something breaks.

One connection links one client to one broker. Each direction is first in, first out, as TCP is: a
message that drew a short delay waits for the one before it. The broker works off one request of a
connection at a time, as Kafka does; the next one waits until the response is out.

A client reads its responses in order, too. So one that gets lost takes along those behind it, until
the client's timeout breaks the connection.

Ground rules: everything runs on the engine's thread. `generation` counts the breaks: what was sent
before a break is not delivered after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from purgatory.kafka import GroupManager, ReplicaManager, TopicPartition, TransactionCoordinator
from purgatory.kafka.faults.active_faults import ActiveFaults
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.scenario import LoseRequests


class NetworkFaults(ActiveFaults):
    """The faults in force as the ways between clients and brokers see them."""

    def loses_request(self, broker: int, api: str, client_id: str) -> bool:
        """Whether the network loses a request on its way; that counts as an injection."""
        return any(
            isinstance(begun.fault, LoseRequests)
            and self._is_injected(begun, begun.fault, broker, api, client_id)
            for begun in list(self.active)
        )


class Server(Protocol):
    """A broker, as those see it who send it requests."""

    id: int
    process_number: int
    """How many processes it has had, this one included."""
    manager: ReplicaManager
    groups: GroupManager | None
    transactions: TransactionCoordinator | None
    coordinator_of: Callable[[str], TransactionCoordinator | None]
    faults: NetworkFaults
    connections: list[Connection]

    def receive(self, request: Request) -> None:
        """Work on a request, or put it behind its connection's other ones."""

    def respond(self, request: Request, answer: Any) -> None:
        """Take the response to a request, on whichever thread it was settled."""

    def look(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """See what has become committed of partitions."""

    def submit(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` in the broker's process: now, after a pause, or never."""


class Request(ABC):
    """A request and what became of it. `execute` runs at the broker, the rest at the client."""

    __slots__ = (
        "answers",
        "arrived_ns",
        "connection",
        "expects_answer",
        "generation",
        "may_wait",
        "process",
        "received_ns",
        "recorded",
        "sent_ns",
        "settled_ns",
    )

    api: str
    """What is requested, by Kafka's name of it."""
    purgatory: str
    """The name of the purgatory in which it may wait."""
    kind: str
    """Who asks: producer, follower, consumer or admin."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.generation = connection.generation
        self.answers = 0
        self.process = 0
        self.sent_ns = 0
        self.arrived_ns = 0
        self.received_ns = 0
        """When the broker began to work on it, after those before it on its connection."""
        self.settled_ns = 0
        """When the broker sent the response."""
        self.recorded = False
        self.may_wait = True
        """Whether it is of the kind that a purgatory holds."""
        self.expects_answer = True
        """Whether the client waits for a response at all."""

    @property
    @abstractmethod
    def timeout_ms(self) -> int:
        """How long the broker may let it wait."""

    @property
    @abstractmethod
    def watch_keys(self) -> tuple[TopicPartition, ...]:
        """The partitions that it is about, on which it waits. O(partitions)."""

    @abstractmethod
    def execute(self, broker: Server) -> None:
        """Have the broker's replica manager work on it; the response goes to `self.respond`."""

    @abstractmethod
    def deliver(self, answer: Any) -> None:
        """Take the response, at the client."""

    @abstractmethod
    def fail(self) -> None:
        """The connection broke before the response came, at the client."""

    def respond(self, answer: Any) -> None:
        """Take the replica manager's answer, at the broker: called exactly once."""
        self.connection.broker.respond(self, answer)


class Connection:
    """A client's connection to a broker.

    Args:
        engine: what delivers.
        broker: the other end.
        delay_ns: draws the delay of one message.
        timeout_ms: how long the client waits for a response before it breaks the connection; 0: it
            waits for ever.
        client_id: what the client calls itself: its group; "" for a broker.
        on_break: is told when the connection broke, after the requests in flight on it.
    """

    __slots__ = (
        "_answer_ns",
        "_answers_end",
        "_armed",
        "_closed",
        "_on_break",
        "_request_ns",
        "_timeout_ns",
        "broker",
        "busy",
        "client_id",
        "delay_ns",
        "engine",
        "generation",
        "in_flight",
        "queue",
    )

    def __init__(
        self,
        engine: Engine,
        broker: Server,
        delay_ns: Callable[[], int],
        timeout_ms: int = 0,
        client_id: str = "",
        on_break: Callable[[], None] | None = None,
    ) -> None:
        self.engine = engine
        self.broker = broker
        self.delay_ns = delay_ns
        self.client_id = client_id
        self.generation = 0
        self.in_flight: dict[Request, None] = {}
        self.queue: deque[Request] = deque()
        self.busy = False
        self._timeout_ns = timeout_ms * NS_PER_MS
        self._armed = False
        self._on_break = on_break
        self._request_ns = 0
        self._answer_ns = 0
        self._answers_end = False
        self._closed = False
        broker.connections.append(self)

    def send(self, request: Request) -> None:
        """Send a request; it counts as in flight until it is answered or the connection breaks."""
        engine = self.engine
        now_ns = engine.now_ns()
        request.sent_ns = now_ns
        if request.expects_answer:
            self.in_flight[request] = None
            if self._timeout_ns and not self._armed:
                self._armed = True
                engine.at(now_ns + self._timeout_ns, self._check_timeout)
        arrival_ns = now_ns + self.delay_ns()
        if arrival_ns <= self._request_ns:
            arrival_ns = self._request_ns + 1
        self._request_ns = arrival_ns
        faults, client_id = self.broker.faults, self.client_id
        if (
            faults.active
            and client_id
            and faults.loses_request(self.broker.id, request.api, client_id)
        ):
            return
        engine.at(arrival_ns, self._arrive, request)

    def answer(self, request: Request, answer: Any) -> None:
        """Send the broker's response back."""
        if self._answers_end:
            return
        copies, extra_ns = 1, 0
        faults = self.broker.faults
        if faults.active and self.client_id:
            fate = faults.response_fate(self.broker.id, request.api, self.client_id)
            copies, extra_ns = fate.copies, round(fate.delay_ms * NS_PER_MS)
            if fate.lost:
                if fate.cut:
                    self.broken()
                self._answers_end = True
                return
        engine = self.engine
        arrival_ns = engine.now_ns() + self.delay_ns() + extra_ns
        if arrival_ns <= self._answer_ns:
            arrival_ns = self._answer_ns + 1
        self._answer_ns = arrival_ns
        for _ in range(copies):
            engine.at(arrival_ns, self._deliver, request, answer)

    def broken(self) -> None:
        """The other end closed it: what waits there, or comes yet, is dropped; the client notices
        after a network delay."""
        self._closed = True
        self.queue.clear()
        self.engine.after(self.delay_ns(), self._notice, self.generation)

    def reset(self) -> None:
        """Break the connection: all requests in flight fail, oldest first; it opens again at once.

        What the broker has begun goes on there, and its response finds nobody.
        """
        self.generation += 1
        self.queue.clear()
        self.busy = False
        self._answers_end = False
        self._closed = False
        failed = list(self.in_flight)
        self.in_flight.clear()
        for request in failed:
            request.fail()
        if self._on_break is not None:
            self._on_break()

    def close(self) -> None:
        """Have done with it: what is in flight fails nobody."""
        self.generation += 1
        self.queue.clear()
        self.in_flight.clear()
        self.broker.connections.remove(self)

    def _arrive(self, request: Request) -> None:
        if request.generation == self.generation and not self._closed:
            request.arrived_ns = self.engine.now_ns()
            self.broker.receive(request)

    def _deliver(self, request: Request, answer: Any) -> None:
        # One that came before is of no use to the client.
        if request.generation == self.generation and request in self.in_flight:
            del self.in_flight[request]
            request.deliver(answer)

    def _notice(self, generation: int) -> None:
        if generation == self.generation:
            self.reset()

    def _check_timeout(self) -> None:
        """Break the connection if the oldest request is overdue; else look again when it will be.

        One event per connection and timeout, not one per request.
        """
        self._armed = False
        oldest = next(iter(self.in_flight), None)
        if oldest is None:
            return
        due_ns = oldest.sent_ns + self._timeout_ns
        if due_ns <= self.engine.now_ns():
            self.reset()
            return
        self._armed = True
        self.engine.at(due_ns, self._check_timeout)
