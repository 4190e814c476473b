"""Connections: messages arrive after a delay, in order, and are lost when a connection breaks.

One connection links one client to one broker. Each direction is first in, first out, as TCP is: a
message with a short delay waits for the one before it. The broker handles one request of a
connection at a time, as Kafka does; the next one waits until the response is sent.

A client reads its responses in order, too. After a lost response the following ones are therefore
lost, until the client's timeout breaks the connection.

Ground rules: everything runs on the engine's thread. `generation` counts the breaks: what was sent
before a break is not delivered after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from purgatory.kafka import ReplicaManager, TopicPartition
from purgatory.kafka.faults.active_faults import ActiveFaults
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.scenario import LoseRequests


class NetworkFaults(ActiveFaults):
    """The active faults between clients and brokers."""

    def drops_request(self, broker: int, api: str, client_id: str) -> bool:
        """Whether a fault loses a request; if so, it counts as injected."""
        return any(
            isinstance(active_fault.fault, LoseRequests)
            and self._is_injected(active_fault, active_fault.fault, broker, api, client_id)
            for active_fault in list(self.active)
        )


class Server(Protocol):
    """A broker, as its clients see it."""

    id: int
    process_number: int
    """The number of its process, from 1."""
    manager: ReplicaManager
    faults: NetworkFaults
    connections: list[Connection]

    def receive(self, request: Request) -> None:
        """Handle a request, or queue it behind others of its connection."""

    def respond(self, request: Request, response: Any) -> None:
        """Take the response to a request."""

    def observe_commits(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Read newly committed batches of partitions."""

    def submit(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` in the broker's process: now, after a pause, or never."""


class Request(ABC):
    """A request and its response. `execute` and `respond` run at the broker, the rest at the
    client."""

    __slots__ = (
        "arrived_ns",
        "connection",
        "expects_response",
        "generation",
        "is_delayable",
        "process",
        "received_ns",
        "recorded",
        "response_count",
        "response_ns",
        "sent_ns",
    )

    api: str
    """Kafka's name of the API."""
    purgatory: str
    """The name of the purgatory in which it may wait."""
    kind: str
    """The kind of requester, as `KINDS` in `trace`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.generation = connection.generation
        self.response_count = 0
        self.process = 0
        self.sent_ns = 0
        self.arrived_ns = 0
        self.received_ns = 0
        """When the broker began to handle it, after those before it on its connection."""
        self.response_ns = 0
        """When the broker sent the response."""
        self.recorded = False
        self.is_delayable = True
        """Whether a purgatory may hold it."""
        self.expects_response = True
        """Whether the client waits for a response."""

    @property
    @abstractmethod
    def timeout_ms(self) -> int:
        """The time by which the broker may delay the response."""

    @property
    @abstractmethod
    def watch_keys(self) -> tuple[TopicPartition, ...]:
        """Its partitions, on which it waits. O(partitions)."""

    @abstractmethod
    def execute(self, broker: Server) -> None:
        """Handle it at the broker; the response goes to `self.respond`."""

    @abstractmethod
    def deliver(self, response: Any) -> None:
        """Handle the response, at the client."""

    @abstractmethod
    def fail(self) -> None:
        """Notify the client that the connection was closed before the response."""

    def respond(self, response: Any) -> None:
        """Send the response, at the broker: called exactly once."""
        self.connection.broker.respond(self, response)


class Connection:
    """A client's connection to a broker.

    Args:
        delay_ns: draws the delay of one message.
        timeout_ms: how long the client waits for a response before it breaks the connection; 0: for
            ever.
        client_id: the client's group; "" for a broker.
        on_disconnect: called when the connection broke, after the requests in flight have failed.
    """

    __slots__ = (
        "_closed_by_broker",
        "_drops_responses",
        "_on_break",
        "_request_arrival_ns",
        "_response_arrival_ns",
        "_timeout_ns",
        "_timeout_scheduled",
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
        on_disconnect: Callable[[], None] | None = None,
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
        self._timeout_scheduled = False
        self._on_break = on_disconnect
        self._request_arrival_ns = 0
        self._response_arrival_ns = 0
        self._drops_responses = False
        self._closed_by_broker = False
        broker.connections.append(self)

    def send(self, request: Request) -> None:
        """Send a request; it is in flight until its response arrives or the connection breaks."""
        engine = self.engine
        now_ns = engine.now_ns()
        request.sent_ns = now_ns
        if request.expects_response:
            self.in_flight[request] = None
            if self._timeout_ns and not self._timeout_scheduled:
                self._timeout_scheduled = True
                engine.call_at(now_ns + self._timeout_ns, self._check_timeout)
        arrival_ns = now_ns + self.delay_ns()
        if arrival_ns <= self._request_arrival_ns:
            arrival_ns = self._request_arrival_ns + 1
        self._request_arrival_ns = arrival_ns
        faults, client_id = self.broker.faults, self.client_id
        if (
            faults.active
            and client_id
            and faults.drops_request(self.broker.id, request.api, client_id)
        ):
            return
        engine.call_at(arrival_ns, self._receive, request)

    def send_response(self, request: Request, response: Any) -> None:
        """Send the broker's response back."""
        if self._drops_responses:
            return
        copies, extra_ns = 1, 0
        faults = self.broker.faults
        if faults.active and self.client_id:
            outcome = faults.response_outcome(self.broker.id, request.api, self.client_id)
            copies, extra_ns = outcome.copies, round(outcome.delay_ms * NS_PER_MS)
            if outcome.lost:
                if outcome.cut:
                    self.close_by_broker()
                self._drops_responses = True
                return
        engine = self.engine
        arrival_ns = engine.now_ns() + self.delay_ns() + extra_ns
        if arrival_ns <= self._response_arrival_ns:
            arrival_ns = self._response_arrival_ns + 1
        self._response_arrival_ns = arrival_ns
        for _ in range(copies):
            engine.call_at(arrival_ns, self._deliver, request, response)

    def close_by_broker(self) -> None:
        """Close the broker's end: its queue and later requests are discarded; the client notices
        after a network delay."""
        self._closed_by_broker = True
        self.queue.clear()
        self.engine.call_after(self.delay_ns(), self._handle_close, self.generation)

    def reset(self) -> None:
        """Break the connection: all requests in flight fail, oldest first; it reopens at once.

        The broker continues requests that it has begun; their responses are discarded.
        """
        self.generation += 1
        self.queue.clear()
        self.busy = False
        self._drops_responses = False
        self._closed_by_broker = False
        failed = list(self.in_flight)
        self.in_flight.clear()
        for request in failed:
            request.fail()
        if self._on_break is not None:
            self._on_break()

    def _receive(self, request: Request) -> None:
        if request.generation == self.generation and not self._closed_by_broker:
            request.arrived_ns = self.engine.now_ns()
            self.broker.receive(request)

    def _deliver(self, request: Request, response: Any) -> None:
        # A duplicate is ignored.
        if request.generation == self.generation and request in self.in_flight:
            del self.in_flight[request]
            request.deliver(response)

    def _handle_close(self, generation: int) -> None:
        if generation == self.generation:
            self.reset()

    def _check_timeout(self) -> None:
        """Break the connection if the oldest request is overdue; else check again at its timeout.

        One event per connection and timeout, not one per request.
        """
        self._timeout_scheduled = False
        oldest = next(iter(self.in_flight), None)
        if oldest is None:
            return
        due_ns = oldest.sent_ns + self._timeout_ns
        if due_ns <= self.engine.now_ns():
            self.reset()
            return
        self._timeout_scheduled = True
        self.engine.call_at(due_ns, self._check_timeout)
