"""Fault injection into a running cluster: a method for each kind, its checks, and its effects.

Ground rules
------------
* Everything happens on the event loop's thread.
* A task that waits for a fault to end (a paused broker, a stalled follower, a cut link) is woken
  at each change, and checks again which faults are active.
"""

from __future__ import annotations

import asyncio
import random
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from inspect import getattr_static, signature
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    ClassVar,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
)

from kio.schema.index import api_key_map

from purgatory.cluster.config import ClusterConfig
from purgatory.cluster.faulty_responses import (
    ServedApi,
    SessionPartition,
    TopicOf,
    faulty_response,
    send_faulty,
    supported_choices,
    tells_of_loading,
)
from purgatory.cluster.frozen_metadata import FrozenMetadata
from purgatory.cluster.protocol.connection import Response, ResponseConnection
from purgatory.cluster.protocol.error_responses import error_places
from purgatory.cluster.protocol.wire import Request
from purgatory.core.recent_errors import Logger
from purgatory.former_names import FormerName
from purgatory.kafka import TopicPartition, faults
from purgatory.kafka.controller import Controller
from purgatory.kafka.errors import ClusterError, ErrorCode
from purgatory.kafka.faults import (
    CutConnections,
    Fault,
    FreezeMetadata,
    Kill,
    LoseRequests,
    MessageFault,
    Pause,
    ReturnError,
    ShrinkIsr,
    Throttle,
)
from purgatory.kafka.faults.active_faults import (
    ActiveFault,
    ActiveFaults,
    draw_injection,
)
from purgatory.kafka.faults.fault import kafka_api_name, suggest_name
from timer.machine_time import time

Arguments = ParamSpec("Arguments")
FaultHandle = TypeVar("FaultHandle")


class FaultMethod(Generic[Arguments]):
    """A descriptor of a method that begins a fault, with the arguments of the fault's class."""

    def __init__(self, kind: Callable[Arguments, Fault]) -> None:
        self._kind = kind
        self._name = ""

    def __set_name__(self, owner_type: type, name: str) -> None:
        self._name = name

    def __get__(
        self, owner: FaultMethods[FaultHandle], owner_type: type | None = None
    ) -> Callable[Arguments, FaultHandle]:
        @wraps(self._kind, updated=())
        def begin(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> FaultHandle:
            taken = signature(self._kind)
            try:
                taken.bind(*arguments, **keywords)
            except TypeError as error:
                names = ", ".join(taken.parameters)
                raise TypeError(f"fault.{self._name}: {error}; it takes {names}") from None
            return owner._begin(self._kind(*arguments, **keywords))

        return begin


class FaultMethods(ABC, Generic[FaultHandle]):
    """Each method begins a fault and returns it.

    A fault lasts for ``for_s`` seconds, until ``end()``, until ``count`` requests are affected, or
    until its ``with`` block ends. Several faults may be active at once. Each method raises
    `ClusterError`, without an effect, if an argument is invalid.
    """

    @abstractmethod
    def _begin(self, fault: Fault) -> FaultHandle:
        """Begin a fault."""

    if not TYPE_CHECKING:  # or it would let any name pass

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            known = [
                known
                for known in dir(type(self))
                if isinstance(getattr_static(self, known), FaultMethod | FunctionType)
                and not known.startswith("_")
            ]
            hint = suggest_name(name, known)
            raise AttributeError(f"there is no fault.{name}: {hint}")

    stall_follower = FaultMethod(faults.StallFollower)
    slow_follower = FaultMethod(faults.SlowFollower)
    shrink_isr = FaultMethod(faults.ShrinkIsr)
    pause = FaultMethod(faults.Pause)
    cut_link = FaultMethod(faults.CutLink)
    lose_requests = FaultMethod(faults.LoseRequests)
    lose_responses = FaultMethod(faults.LoseResponses)
    delay_responses = FaultMethod(faults.DelayResponses)
    duplicate_responses = FaultMethod(faults.DuplicateResponses)
    truncate_responses = FaultMethod(faults.TruncateResponses)
    slow_responses = FaultMethod(faults.SlowResponses)
    refuse_produces = FaultMethod(faults.RefuseProduces)
    return_error = FaultMethod(faults.ReturnError)
    load_coordinator = FaultMethod(faults.LoadCoordinator)
    throttle = FaultMethod(faults.Throttle)
    lower_leader_epochs = FaultMethod(faults.LowerLeaderEpochs)
    freeze_metadata = FaultMethod(faults.FreezeMetadata)
    jump_clock = FaultMethod(faults.JumpClock)
    answer = FormerName("return_error")
    delay_answers = FormerName("delay_responses")
    duplicate_answers = FormerName("duplicate_responses")
    lose_answers = FormerName("lose_responses")
    slow_answers = FormerName("slow_responses")
    tear_answers = FormerName("truncate_responses")
    turn_back_epochs = FormerName("lower_leader_epochs")


def check_message_fault(fault: MessageFault, apis: Mapping[int, ServedApi]) -> None:
    """Check a fault against the supported APIs.

    Raises:
        ClusterError: the fault would never be injected; the message says what is valid.
    """
    if fault.api is None:
        return
    name = kafka_api_name(fault.api)
    keys = {api_key_map[key]: key for key in apis}
    if fault.api not in keys:
        hint = suggest_name(name, sorted(map(kafka_api_name, keys)))
        raise ClusterError(f"api={fault.api!r}: no such API is served; {hint}")
    key = keys[fault.api]
    api = apis[key]
    if isinstance(fault, ReturnError):
        if fault.only_coordinators and not tells_of_loading(key, api):
            why = (
                "gets no error of a coordinator that loads, as in Kafka"
                if api.redirect == ErrorCode.NOT_COORDINATOR
                else "isn't sent to coordinators"
            )
            raise ClusterError(f"api={fault.api!r}: {name} {why}; JoinGroup gets one")
        choices = sorted(supported_choices(key, api))
        for choice, value in fault.chosen.items():
            if choice not in choices:
                hint = f"it can be {', '.join(choices)}" if choices else "leave it out"
                field = choice.replace("_", " ")
                raise ClusterError(f"{choice}={value!r}: {name} names no {field}; {hint}")
    newest = error_places(key, api.versions[1], api.errors).response
    if isinstance(fault, Throttle) and not hasattr(newest, "throttle_time"):
        raise ClusterError(f"api={fault.api!r}: responses of {name} have no throttle time")


_log = Logger("purgatory.cluster")


class FaultyBroker(Protocol):
    """A broker into which faults are injected."""

    def cut_connections(self) -> int:
        """Cut all clients' connections, and return how many there were."""


class FaultTarget(Protocol):
    """Brokers with clients: a cluster, or a proxy."""

    @property
    def apis(self) -> Mapping[int, ServedApi]:
        """The APIs that are served, by key."""

    @property
    def brokers(self) -> Mapping[int, FaultyBroker]:
        """All brokers by id."""


class ClusterTarget(FaultTarget, Protocol):
    """The cluster into which faults are injected."""

    config: ClusterConfig
    controller: Controller

    def live_broker(self, broker_id: int) -> object | None:
        """Return a live broker, or None."""

    async def kill(self, broker_id: int, lost_records: int = 0) -> None:
        """Kill a broker, and notify the controller."""

    async def revive(self, broker_id: int) -> None:
        """Start a broker that was killed."""

    def revive_soon(self, broker_id: int) -> None:
        """As ``revive``, without waiting."""

    def check_decisions(self) -> None:
        """Complete requests that wait until all live brokers apply a change."""


OnRefused = Callable[
    [ResponseConnection, Request, Collection[tuple[str, int]] | None, int, TopicOf], object
]
"""Takes a request, the partitions that got an error (None: all), and the error."""


class ConnectionFaults(ActiveFaults, FaultMethods[ActiveFault]):
    """Injects faults into connections and responses, and lists the active ones."""

    refusals: ClassVar[Mapping[str, str]] = {}
    """The kinds of faults that are not possible here, and why."""

    def __init__(self, target: FaultTarget) -> None:
        # Seeded by `random`, so that a program with a seed has the same faults in each run.
        super().__init__(time.monotonic, _call_later, random.Random(random.getrandbits(64)))
        self._target = target
        self._waiters: list[asyncio.Future[None]] = []
        self._silenced_connections: weakref.WeakSet[ResponseConnection] = weakref.WeakSet()
        self.frozen_metadata = FrozenMetadata(self.active)
        self._has_silenced = False
        """Whether any was: each response asks, and a look into a weak set takes time."""
        self.on_refused: OnRefused | None = None
        """Called for each error that was injected into a request instead of executing it."""
        self.on_use: Callable[[], object] = lambda: None
        """Called when a fault was injected, or has ended."""

    async def begin(self, fault: Fault) -> ActiveFault:
        """Begin a fault of any kind.

        Raises:
            ClusterError: the fault is not possible here; nothing has begun.
        """
        return self._begin(fault)

    def _begin(self, fault: Fault) -> ActiveFault:
        self._check(fault)
        active_fault = self._begin_fault(fault)
        if isinstance(fault, CutConnections):
            chosen = fault.brokers or self._target.brokers
            active_fault.uses = sum(
                self._target.brokers[broker_id].cut_connections() for broker_id in chosen
            )
            active_fault.end()
        if isinstance(fault, FreezeMetadata):
            self.frozen_metadata.freeze(active_fault)
        return active_fault

    @abstractmethod
    async def revive(self, broker: int) -> None:
        """Start a broker that was killed."""

    def cut_connections(self, broker: int | None = None) -> int:
        """Cut the clients' connections, of one broker or of all; return how many there were."""
        return self._begin(CutConnections(broker)).uses

    def forget_all(self) -> None:
        """Remove every fault without reverting it, at the end."""
        for active_fault in self.active:
            active_fault.forget()
        self.active.clear()
        self.frozen_metadata.clear()
        self._wake()

    def _on_end(self, active_fault: ActiveFault) -> None:
        super()._on_end(active_fault)
        self.frozen_metadata.end(active_fault)

    def _on_use(self) -> None:
        self.on_use()

    def _on_change(self, active_fault: ActiveFault) -> None:
        fault = active_fault.fault
        if active_fault.active:
            _log.info("fault_began", kind=fault.kind, for_s=fault.for_s, **fault.settings)
        else:
            _log.info("fault_ended", kind=fault.kind, uses=active_fault.uses, **fault.settings)
        self._wake()

    def _check(self, fault: Fault) -> None:
        for broker in fault.brokers:
            self._check_broker(broker)
        if isinstance(fault, MessageFault):
            check_message_fault(fault, self._target.apis)

    def _check_broker(self, broker: int) -> None:
        if type(broker) is not int or broker not in self._target.brokers:
            known = ", ".join(map(str, self._target.brokers)) or "none yet"
            raise ClusterError(f"there is no broker {broker!r}; there are {known}")

    # Effects.

    async def wait_while_paused(self, broker: int) -> None:
        """Wait until ``broker`` is not paused."""
        while self.is_paused(broker):
            await self._wait_for_change()

    def loses_request(self, broker: int, connection: ResponseConnection, request: Request) -> bool:
        """Whether a fault loses a request, which has no response then; counts it."""
        for active_fault, fault in self.matching(broker, request.api_name, request.client_id):
            if isinstance(fault, LoseRequests) and draw_injection(active_fault, fault):
                if fault.cut:
                    connection.abort()
                return True
        return False

    async def respond(
        self,
        broker: int,
        request: Request,
        connection: ResponseConnection,
        handle: Callable[[Request], Response | Awaitable[Response]],
        topic_of: TopicOf,
        session: Sequence[SessionPartition] = (),
    ) -> Response:
        """Execute what the faults leave of a request, and return the altered response."""
        api = self._target.apis[request.api_key]
        faulty = await faulty_response(
            self, broker, request, api, connection, handle, topic_of, session
        )
        if faulty.hides_execution:
            self._silenced_connections.add(connection)
            self._has_silenced = True
        if self.on_refused is not None:
            for error in faulty.refused:
                self.on_refused(
                    connection, request, error.partitions(), error.fault.error_code, topic_of
                )
        return faulty.response

    def is_altering_responses(self, connection: ResponseConnection) -> bool:
        """Whether `send` may do anything but write a response."""
        if self.active:
            return True
        return self._has_silenced and connection in self._silenced_connections

    async def send(
        self,
        broker: int,
        connection: ResponseConnection,
        request: Request,
        frame: bytes,
        on_written: Callable[[], object] = lambda: None,
    ) -> bool:
        """Send a response to a client, with the effects of the active faults.

        Args:
            on_written: called if the client gets the whole frame.

        Returns:
            Whether the client received what the broker responded.
        """
        is_misleading = connection in self._silenced_connections
        self._silenced_connections.discard(connection)
        if self.active:
            await self.wait_while_paused(broker)
            outcome = self.response_outcome(broker, request.api_name, request.client_id)
            arrived = await send_faulty(connection, frame, outcome)
        else:
            arrived = connection.write(frame)
        if arrived:
            on_written()
        return arrived and not is_misleading

    # Tasks that wait for a fault to end.

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait_for_change(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter


class Served(Protocol):
    """A cluster or a proxy, to which clients connect."""

    @property
    def fault(self) -> ConnectionFaults:
        """The faults."""

    @property
    def bootstrap_servers(self) -> str:
        """The ``bootstrap.servers`` of clients."""

    async def start(self) -> None:
        """Start."""

    async def stop(self) -> None:
        """Stop, also after an incomplete start."""


class Faults(ConnectionFaults):
    """Injects faults into a cluster, and lists the active ones."""

    def __init__(self, cluster: ClusterTarget) -> None:
        super().__init__(cluster)
        self._cluster = cluster

    # Begins and ends.

    async def begin(self, fault: Fault) -> ActiveFault:
        if isinstance(fault, Kill):
            self._check(fault)
            await self._cluster.kill(fault.broker, fault.lost_records)
            return self._begin_fault(fault)
        return await super().begin(fault)

    def _begin(self, fault: Fault) -> ActiveFault:
        active_fault = super()._begin(fault)
        if isinstance(fault, ShrinkIsr):
            topic_partition = TopicPartition(fault.topic, fault.partition)
            self._cluster.controller.remove_from_isr(topic_partition, fault.broker)
        return active_fault

    async def kill(
        self, broker: int, *, lost_records: int = 0, for_s: float | timedelta | None = None
    ) -> ActiveFault:
        """Kill a broker as SIGKILL does; it is revived when the fault ends.

        The last ``lost_records`` of each of its logs are then lost, as after damage to its disk.
        """
        return await self.begin(Kill(broker, lost_records=lost_records, for_s=for_s))

    async def revive(self, broker: int) -> None:
        self._check_broker(broker)
        if self._cluster.live_broker(broker) is not None:
            raise ClusterError(f"broker {broker} lives")
        for active_fault in list(self.active):
            if isinstance(active_fault.fault, Kill) and active_fault.fault.broker == broker:
                active_fault.forget()
                super()._on_end(active_fault)
        await self._cluster.revive(broker)

    def _on_end(self, active_fault: ActiveFault) -> None:
        super()._on_end(active_fault)
        if isinstance(active_fault.fault, Kill):
            self._cluster.revive_soon(active_fault.fault.broker)
        if isinstance(active_fault.fault, Pause):
            self._cluster.check_decisions()

    # Effects.

    async def wait_for_fetch(self, follower: int, leader: int) -> None:
        """Wait until no fault blocks a follower's fetch from its leader."""
        while self.blocks_fetch(follower, leader):
            await self._wait_for_change()

    async def wait_for_fetch_response(self, follower: int, leader: int) -> None:
        """Wait for the follower's lag after the leader's response."""
        lag_ms = self._cluster.config.follower_lag_ms + self.follower_lag_ms(follower)
        if lag_ms:
            await asyncio.sleep(lag_ms / 1_000)
        await self.wait_for_fetch(follower, leader)

    async def serve(
        self,
        broker_id: int,
        request: Request,
        connection: ResponseConnection,
        handle: Callable[[Request], Response | Awaitable[Response]],
        client: object,
        session: Callable[[int], Sequence[SessionPartition]],
    ) -> Response:
        """Return the response of a broker to a request, with the active faults.

        Args:
            handle: handles what the faults leave of the request.
            client: as `MetadataKey` has it.
            session: returns the partitions of the fetch session that has an id.
        """
        await self.wait_while_paused(broker_id)
        if self.loses_request(broker_id, connection, request):
            return None
        in_session = request.api_name == "fetch" and getattr(request.body, "session_epoch", 0) > 0
        return await self.respond(
            broker_id,
            request,
            connection,
            lambda rest: self.frozen_metadata.respond(broker_id, rest, handle, client),
            self._topic_of,
            session(request.body.session_id) if in_session else (),
        )

    def _topic_of(self, topic_id: uuid.UUID) -> str | None:
        topics = self._cluster.controller.topics.values()
        return next(
            (topic.name for topic in topics if getattr(topic, "topic_id", None) == topic_id), None
        )

    # Checks.

    def check_live(self, broker: int) -> None:
        """Check that a broker is alive.

        Raises:
            ClusterError: it is dead, or there is no such broker.
        """
        self._check_broker(broker)
        if self._cluster.live_broker(broker) is None:
            raise ClusterError(f"broker {broker} is dead already")

    def _check(self, fault: Fault) -> None:
        super()._check(fault)
        if isinstance(fault, Kill | Pause):
            self.check_live(fault.broker)
        if isinstance(fault, ShrinkIsr):
            self._check_follower(fault)

    def _check_follower(self, fault: ShrinkIsr) -> None:
        controller = self._cluster.controller
        topic_partition = TopicPartition(fault.topic, fault.partition)
        state = controller.state_of(topic_partition) if type(fault.partition) is int else None
        if state is None:
            raise ClusterError(
                f"there is no partition {topic_partition}; "
                f"topics are {', '.join(controller.topics) or 'none'}"
            )
        if not controller.is_follower(topic_partition, fault.broker):
            raise ClusterError(
                f"broker {fault.broker} is no follower of {topic_partition}: its replicas "
                f"are {state.replicas}, and broker {state.leader} leads"
            )


def _call_later(seconds: float, function: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, function)
