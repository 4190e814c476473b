"""What can be made to go wrong in a cluster, while it runs.

Each call puts one fault in and returns it; it lasts for ``for_s`` seconds, until ``end()``, until
its ``count`` is used up, or, as a context manager, to the end of the ``with`` block. Faults add up.

Ground rules
------------
* Everything happens on the event loop's thread.
* Whoever waits for a fault to end (a paused broker, a stalled follower, a cut link) is woken at
  each change, and looks again at what is in force.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from purgatory.cluster.errors import ClusterError
from purgatory.cluster.fault import Fault
from purgatory.cluster.fault_arguments import (
    check_api,
    check_count,
    check_duration,
    check_milliseconds,
)
from purgatory.core.fault_log import Logger
from purgatory.kafka import TopicPartition

if TYPE_CHECKING:
    from purgatory.cluster.cluster import Cluster
    from purgatory.cluster.protocol.connection import Connection
    from purgatory.cluster.protocol.wire import Request

_RECENT = 50

_log = Logger("purgatory.cluster")


class Faults:
    """Puts faults into a cluster, and says which are in force."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self.active: list[Fault] = []
        self.recent: deque[Fault] = deque(maxlen=_RECENT)
        self._waiters: list[asyncio.Future[None]] = []

    # Followers.

    def stall_follower(self, broker: int, for_s: float | None = None) -> Fault:
        """Have a broker copy nothing: what it follows stands still."""
        return self._begin("stall_follower", for_s, broker=self._known(broker))

    def slow_follower(self, broker: int, lag_ms: float, for_s: float | None = None) -> Fault:
        """Have a broker take ``lag_ms`` longer for each answer that it copies."""
        check_milliseconds("lag_ms", lag_ms)
        return self._begin("slow_follower", for_s, broker=self._known(broker), lag_ms=lag_ms)

    def shrink_isr(
        self, topic: str, partition: int, broker: int, for_s: float | None = None
    ) -> Fault:
        """Put a follower out of a partition's ISR, and let it not come back meanwhile."""
        controller = self._cluster.controller
        topic_partition = TopicPartition(topic, partition)
        state = controller.state_of(topic_partition) if type(partition) is int else None
        if state is None:
            raise ClusterError(
                f"there is no partition {topic_partition}; "
                f"topics are {', '.join(controller.topics) or 'none'}"
            )
        if self._known(broker) == state.leader or broker not in state.replicas:
            raise ClusterError(
                f"broker {broker} is no follower of {topic_partition}: its replicas are "
                f"{state.replicas}, and broker {state.leader} leads"
            )
        fault = self._begin("shrink_isr", for_s, topic=topic, partition=partition, broker=broker)
        controller.put_out_of_sync(topic_partition, broker)
        return fault

    def bars_from_isr(self, topic_partition: TopicPartition, broker: int) -> bool:
        """Whether a fault keeps ``broker`` out of the ISR."""
        topic, partition = topic_partition
        return any(
            fault.kind == "shrink_isr"
            and fault.settings["topic"] == topic
            and fault.settings["partition"] == partition
            and fault.settings["broker"] == broker
            for fault in self.active
        )

    # Brokers.

    async def kill(self, broker: int, for_s: float | None = None) -> Fault:
        """Kill a broker as SIGKILL does; it is revived when the fault ends."""
        check_duration(for_s)
        if self._cluster.live_broker(self._known(broker)) is None:
            raise ClusterError(f"broker {broker} is dead already")
        await self._cluster.kill(broker)
        return self._begin("kill", for_s, lambda: self._cluster.revive_soon(broker), broker=broker)

    async def revive(self, broker: int) -> None:
        """Start a broker that was killed."""
        if self._cluster.live_broker(self._known(broker)) is not None:
            raise ClusterError(f"broker {broker} lives")
        for fault in list(self.active):
            if fault.kind == "kill" and fault.settings["broker"] == broker:
                fault.on_end = None
                fault.end()
        await self._cluster.revive(broker)

    def pause(self, broker: int, for_s: float | None = None) -> Fault:
        """Have a broker do nothing, as SIGSTOP does: its connections stay, and nobody answers."""
        return self._begin("pause", for_s, broker=self._known(broker))

    def cut_link(self, a: int, b: int, for_s: float | None = None) -> Fault:
        """Let nothing pass between two brokers."""
        if self._known(a) == self._known(b):
            raise ClusterError(f"brokers {a} and {b} are the same one")
        return self._begin("cut_link", for_s, a=a, b=b)

    # Clients.

    def lose_answers(
        self,
        broker: int,
        count: int | None = None,
        api: str | None = None,
        cut: bool = True,
        for_s: float | None = None,
    ) -> Fault:
        """Lose answers that were made: what was asked is done, and the client isn't told.

        Args:
            broker: whose.
            count: how many; None: all.
            api: of this API only, "produce"; None: of all.
            cut: whether the connection is cut with it. If not, the client waits for its timeout.
            for_s: how long.
        """
        return self._begin(
            "lose_answers", for_s, broker=self._known(broker), count=count, api=api, cut=cut
        )

    def delay_answers(
        self,
        broker: int,
        by_ms: float,
        count: int | None = None,
        api: str | None = None,
        for_s: float | None = None,
    ) -> Fault:
        """Send answers ``by_ms`` later."""
        check_milliseconds("by_ms", by_ms)
        return self._begin(
            "delay_answers", for_s, broker=self._known(broker), by_ms=by_ms, count=count, api=api
        )

    def duplicate_answers(
        self,
        broker: int,
        count: int | None = None,
        api: str | None = None,
        for_s: float | None = None,
    ) -> Fault:
        """Send answers twice."""
        return self._begin(
            "duplicate_answers", for_s, broker=self._known(broker), count=count, api=api
        )

    def refuse_produces(
        self, broker: int, count: int | None = None, for_s: float | None = None
    ) -> Fault:
        """Refuse produces with NOT_ENOUGH_REPLICAS, after which clients send them again.

        Of several requests that are under way, one that is refused is overtaken by those behind.
        """
        return self._begin("refuse_produces", for_s, broker=self._known(broker), count=count)

    def cut_connections(self, broker: int | None = None) -> int:
        """Cut the clients' connections, of one broker or of all; return how many there were."""
        brokers = self._cluster.brokers
        chosen = brokers.values() if broker is None else [brokers[self._known(broker)]]
        cut = sum(one.cut_connections() for one in chosen)
        self._begin("cut_connections", None, broker=broker).end()
        return cut

    def end_all(self) -> None:
        """End every fault."""
        for fault in list(self.active):
            fault.end()

    def forget_all(self) -> None:
        """Forget every fault without undoing it: the cluster stops."""
        for fault in self.active:
            fault.forget()
        self.active.clear()
        self._tell()

    # Where they strike.

    async def pass_pause(self, broker: int) -> None:
        """Return when ``broker`` is not paused."""
        while any(f.kind == "pause" and f.settings["broker"] == broker for f in self.active):
            await self._wait_for_change()

    async def pass_fetch(self, follower: int, leader: int) -> None:
        """Return when a follower's fetch may go to its leader."""
        while any(self._holds_fetch(fault, follower, leader) for fault in self.active):
            await self._wait_for_change()

    async def pass_answer(self, follower: int, leader: int) -> None:
        """Return when the follower has worked off the leader's answer."""
        lag_ms = self._cluster.config.follower_lag_ms + sum(
            fault.settings["lag_ms"]
            for fault in self.active
            if fault.kind == "slow_follower" and fault.settings["broker"] == follower
        )
        if lag_ms:
            await asyncio.sleep(lag_ms / 1_000)
        await self.pass_fetch(follower, leader)

    def _holds_fetch(self, fault: Fault, follower: int, leader: int) -> bool:
        settings = fault.settings
        if fault.kind == "stall_follower":
            return bool(settings["broker"] == follower)
        if fault.kind == "pause":
            return settings["broker"] in (follower, leader)
        return fault.kind == "cut_link" and {settings["a"], settings["b"]} == {follower, leader}

    def refuses_produce(self, broker: int) -> bool:
        """Whether a produce that came to ``broker`` is to be refused; it counts as a strike."""
        for fault in self.active:
            if fault.kind == "refuse_produces" and fault.settings["broker"] == broker:
                fault.use()
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
        for fault in list(self.active):
            if not fault.active or not _strikes(fault, broker, request):
                continue
            fault.use()
            if fault.kind == "lose_answers":
                if fault.settings["cut"]:
                    connection.abort()
                return False
            if fault.kind == "delay_answers":
                await asyncio.sleep(fault.settings["by_ms"] / 1_000)
            if fault.kind == "duplicate_answers":
                copies += 1
        arrived = False
        for _ in range(copies):
            arrived = await connection.write(frame)
        return arrived

    # Keeping the books.

    def _begin(
        self,
        kind: str,
        for_s: float | None,
        on_end: Callable[[], object] | None = None,
        **settings: Any,
    ) -> Fault:
        check_duration(for_s)
        check_count(settings.get("count"))
        check_api(settings.get("api"))
        fault = Fault(self, next(self._numbers), kind, settings, on_end)
        self.active.append(fault)
        self.recent.append(fault)
        if for_s is not None:
            fault.end_after(for_s)
        _log.info("fault_began", kind=kind, for_s=for_s, **settings)
        self._tell()
        return fault

    def ended(self, fault: Fault) -> None:
        """Note that a fault has ended, which calls this itself."""
        self.active.remove(fault)
        _log.info("fault_ended", kind=fault.kind, uses=fault.uses, **fault.settings)
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

    def _known(self, broker: int) -> int:
        if type(broker) is not int or broker not in self._cluster.brokers:
            known = ", ".join(map(str, self._cluster.brokers))
            raise ClusterError(f"there is no broker {broker!r}; there are {known}")
        return broker


def _strikes(fault: Fault, broker: int, request: Request) -> bool:
    if fault.kind not in ("lose_answers", "delay_answers", "duplicate_answers"):
        return False
    api = fault.settings["api"]
    return fault.settings["broker"] == broker and api in (None, request.api_name)
