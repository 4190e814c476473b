"""What can be made to go wrong in a cluster, while it runs, and what each kind does to it.

Ground rules
------------
* Everything happens on the event loop's thread.
* A task that waits for a fault to end (a paused broker, a stalled follower, a cut link) is woken
  at each change, and looks again at what is in force.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kio.schema.index import api_key_map

from purgatory.cluster.begun_fault import BegunFault
from purgatory.cluster.fault_methods import FaultMethods
from purgatory.cluster.protocol.wire import SUPPORTED
from purgatory.core.fault_log import Logger
from purgatory.kafka import TopicPartition
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import (
    AnswerFault,
    CutConnections,
    CutLink,
    DelayAnswers,
    DuplicateAnswers,
    Fault,
    Kill,
    LoseAnswers,
    Pause,
    RefuseProduces,
    ShrinkIsr,
    SlowFollower,
    StallFollower,
)

if TYPE_CHECKING:
    from purgatory.cluster.cluster import Cluster
    from purgatory.cluster.protocol.connection import Connection
    from purgatory.cluster.protocol.wire import Request

_APIS = tuple(api_key_map[api_key] for api_key in SUPPORTED)
_RECENT = 50

_log = Logger("purgatory.cluster")


class Faults(FaultMethods[BegunFault]):
    """Puts faults into a cluster, and says which are in force."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self.active: list[BegunFault] = []
        self.recent: deque[BegunFault] = deque(maxlen=_RECENT)
        self._waiters: list[asyncio.Future[None]] = []

    # How they begin and end.

    async def begin(self, fault: Fault) -> BegunFault:
        """Begin a fault of any kind, as the method of its name does.

        Raises:
            ClusterError: it makes no sense in this cluster; says what would. Nothing has begun.
        """
        if isinstance(fault, Kill):
            self._check(fault)
            await self._cluster.kill(fault.broker)
            return self._put_in_force(fault)
        return self._begin(fault)

    def _begin(self, fault: Fault) -> BegunFault:
        self._check(fault)
        begun = self._put_in_force(fault)
        if isinstance(fault, ShrinkIsr):
            topic_partition = TopicPartition(fault.topic, fault.partition)
            self._cluster.controller.put_out_of_sync(topic_partition, fault.broker)
        if isinstance(fault, CutConnections):
            chosen = fault.brokers or self._cluster.brokers
            begun.uses = sum(self._cluster.brokers[one].cut_connections() for one in chosen)
            begun.end()
        return begun

    async def kill(self, broker: int, *, for_s: float | None = None) -> BegunFault:
        """Kill a broker as SIGKILL does; it is revived when the fault ends."""
        return await self.begin(Kill(broker, for_s=for_s))

    async def revive(self, broker: int) -> None:
        """Start a broker that was killed."""
        self._check_broker(broker)
        if self._cluster.live_broker(broker) is not None:
            raise ClusterError(f"broker {broker} lives")
        for begun in list(self.active):
            if isinstance(begun.fault, Kill) and begun.fault.broker == broker:
                begun.forget()
                self._note_end(begun)
        await self._cluster.revive(broker)

    def cut_connections(self, broker: int | None = None) -> int:
        """Cut the clients' connections, of one broker or of all; return how many there were."""
        return self._begin(CutConnections(broker)).uses

    def end_all(self) -> None:
        """End every fault."""
        for begun in list(self.active):
            begun.end()

    def forget_all(self) -> None:
        """Forget every fault without undoing it: the cluster stops."""
        for begun in self.active:
            begun.forget()
        self.active.clear()
        self._tell()

    def _ended(self, begun: BegunFault) -> None:
        self._note_end(begun)
        if isinstance(begun.fault, Kill):
            self._cluster.revive_soon(begun.fault.broker)

    # Where they strike.

    def bars_from_isr(self, topic_partition: TopicPartition, broker: int) -> bool:
        """Whether a fault keeps ``broker`` out of the ISR."""
        return any(
            isinstance(fault, ShrinkIsr)
            and (fault.topic, fault.partition, fault.broker) == (*topic_partition, broker)
            for fault in self._in_force()
        )

    async def pass_pause(self, broker: int) -> None:
        """Return when ``broker`` is not paused."""
        while any(isinstance(f, Pause) and f.broker == broker for f in self._in_force()):
            await self._wait_for_change()

    async def pass_fetch(self, follower: int, leader: int) -> None:
        """Return when a follower's fetch may go to its leader."""
        while any(_holds_fetch(fault, follower, leader) for fault in self._in_force()):
            await self._wait_for_change()

    async def pass_answer(self, follower: int, leader: int) -> None:
        """Return when the follower has taken in the leader's answer."""
        lag_ms = self._cluster.config.follower_lag_ms + sum(
            fault.lag_ms
            for fault in self._in_force()
            if isinstance(fault, SlowFollower) and fault.broker == follower
        )
        if lag_ms:
            await asyncio.sleep(lag_ms / 1_000)
        await self.pass_fetch(follower, leader)

    def refuses_produce(self, broker: int) -> bool:
        """Whether a produce that came to ``broker`` is to be refused; it counts as a strike."""
        for begun in self.active:
            if isinstance(begun.fault, RefuseProduces) and begun.fault.broker == broker:
                begun.use()
                return True
        return False

    async def send(
        self, broker: int, connection: Connection, request: Request, frame: bytes
    ) -> bool:
        """Bring an answer to a client, or do to it what the faults in force say.

        Returns:
            Whether the client was sent it.
        """
        if not self.active:
            return await connection.write(frame)
        await self.pass_pause(broker)
        copies = 1
        for begun in list(self.active):
            fault = begun.fault
            if not begun.active or not isinstance(fault, AnswerFault):
                continue
            if fault.broker != broker or fault.api not in (None, request.api_name):
                continue
            begun.use()
            if isinstance(fault, LoseAnswers):
                if fault.cut:
                    connection.abort()
                return False
            if isinstance(fault, DelayAnswers):
                await asyncio.sleep(fault.by_ms / 1_000)
            if isinstance(fault, DuplicateAnswers):
                copies += 1
        arrived = False
        for _ in range(copies):
            arrived = await connection.write(frame)
        return arrived

    # What makes sense in this cluster.

    def _check(self, fault: Fault) -> None:
        for broker in fault.brokers:
            self._check_broker(broker)
        if isinstance(fault, AnswerFault) and fault.api not in (None, *_APIS):
            known = ", ".join(_APIS)
            raise ClusterError(f"api={fault.api!r}: one of {known}, or left out for all")
        if isinstance(fault, Kill) and self._cluster.live_broker(fault.broker) is None:
            raise ClusterError(f"broker {fault.broker} is dead already")
        if isinstance(fault, ShrinkIsr):
            self._check_follower(fault)

    def _check_broker(self, broker: int) -> None:
        if type(broker) is not int or broker not in self._cluster.brokers:
            known = ", ".join(map(str, self._cluster.brokers))
            raise ClusterError(f"there is no broker {broker!r}; there are {known}")

    def _check_follower(self, fault: ShrinkIsr) -> None:
        controller = self._cluster.controller
        topic_partition = TopicPartition(fault.topic, fault.partition)
        state = controller.state_of(topic_partition) if type(fault.partition) is int else None
        if state is None:
            raise ClusterError(
                f"there is no partition {topic_partition}; "
                f"topics are {', '.join(controller.topics) or 'none'}"
            )
        if fault.broker == state.leader or fault.broker not in state.replicas:
            raise ClusterError(
                f"broker {fault.broker} is no follower of {topic_partition}: its replicas "
                f"are {state.replicas}, and broker {state.leader} leads"
            )

    # Keeping the books.

    def _in_force(self) -> Iterator[Fault]:
        return (begun.fault for begun in self.active)

    def _put_in_force(self, fault: Fault) -> BegunFault:
        begun = BegunFault(next(self._numbers), fault, self._ended)
        self.active.append(begun)
        self.recent.append(begun)
        _log.info("fault_began", kind=fault.kind, for_s=fault.for_s, **fault.settings)
        self._tell()
        return begun

    def _note_end(self, begun: BegunFault) -> None:
        self.active.remove(begun)
        _log.info("fault_ended", kind=begun.fault.kind, uses=begun.uses, **begun.fault.settings)
        self._tell()

    def _tell(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait_for_change(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter


def _holds_fetch(fault: Fault, follower: int, leader: int) -> bool:
    match fault:
        case StallFollower(broker=broker):
            return follower == broker
        case Pause(broker=broker):
            return broker in (follower, leader)
        case CutLink(a=a, b=b):
            return {a, b} == {follower, leader}
    return False
