"""The faults that are active, and what they do to brokers, links and messages.

Whoever drives a cluster asks here wherever a fault may be injected, and does what the result says:
hold a fetch back, drop a response, send it later. What begins and ends outside (a broker that is
killed, connections that are cut) the driver does itself.

Ground rules
------------
* One thread at a time calls it.
* A fault of limited time ends by the driver's ``call_later``; one that ended before is not ended
  again.
* Whoever holds something back checks again at each change (`_changed`).
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self

from purgatory.kafka.faults import (
    AnswerFault,
    CountedFault,
    CutLink,
    DelayAnswers,
    DuplicateAnswers,
    Fault,
    JumpClock,
    Kill,
    LoseAnswers,
    MessageFault,
    Pause,
    RefuseProduces,
    ShrinkIsr,
    SlowAnswers,
    SlowFollower,
    StallFollower,
    TearAnswers,
)
from purgatory.kafka.topic_partition import TopicPartition


class Endable(ABC):
    """Ends with ``end()``, or at the end of a ``with`` block."""

    @abstractmethod
    def end(self) -> None:
        """Let things go right again. Ending twice has no effect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()


class ActiveFault(Endable):
    """A fault that has begun.

    Args:
        number: from 1 on, in the order in which they began.
        fault: what goes wrong.
        now_s: tells the time, in seconds.
        on_end: is told when it has ended.
        random: its chance.
    """

    def __init__(
        self,
        number: int,
        fault: Fault,
        now_s: Callable[[], float],
        on_end: Callable[[ActiveFault], None],
        random: Random,
    ) -> None:
        self.number = number
        self.fault = fault
        self.random = random
        self.began_s = now_s()
        self.ended_s: float | None = None
        self.uses = 0
        self._now_s = now_s
        self._on_end = on_end

    @property
    def active(self) -> bool:
        """Whether it is still in force."""
        return self.ended_s is None

    def end(self) -> None:
        """Let things go right again. Ending twice has no effect."""
        if self.active:
            self.forget()
            self._on_end(self)

    def forget(self) -> None:
        """Take it for ended, and tell nobody."""
        self.ended_s = self._now_s()

    def use(self) -> None:
        """Record that it struck; the last of ``count`` strikes ends it."""
        self.uses += 1
        if isinstance(self.fault, CountedFault) and self.uses == self.fault.count:
            self.end()

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "number": self.number,
            "kind": self.fault.kind,
            "settings": self.fault.settings,
            "began_s": self.began_s,
            "ended_s": self.ended_s,
            "uses": self.uses,
        }


_RECENT = 50


class ResponseFate(NamedTuple):
    """What becomes of a response: it comes ``delay_ms`` later, in ``copies``, or is lost.

    With one that is lost, the client's connection may be ``cut``. One that is ``torn`` comes in
    part, and the connection is cut: of its bytes come ``torn.keep_bytes``. It comes at
    ``bytes_per_s``, where that is no None.
    """

    delay_ms: float = 0
    copies: int = 1
    lost: bool = False
    cut: bool = False
    torn: TearAnswers | None = None
    bytes_per_s: int | None = None


AS_USUAL = ResponseFate()


class ActiveFaults:
    """Keeps the faults that have begun.

    Args:
        now_s: tells the time, in seconds.
        call_later: calls a function in so many seconds.
        random: the chance of faults that have no seed of their own.
    """

    def __init__(
        self,
        now_s: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
        random: Random,
    ) -> None:
        self.active: list[ActiveFault] = []
        self.recent: deque[ActiveFault] = deque(maxlen=_RECENT)
        self._numbers = itertools.count(1)
        self._now_s = now_s
        self._call_later = call_later
        self._random = random

    # How they begin and end.

    def _put_in_force(self, fault: Fault) -> ActiveFault:
        if isinstance(fault, Kill):
            self._end_pauses(fault.broker)
        seed = fault.seed if isinstance(fault, MessageFault) else None
        chance = self._random if seed is None else Random(seed)
        begun = ActiveFault(next(self._numbers), fault, self._now_s, self._ended, chance)
        self.active.append(begun)
        self.recent.append(begun)
        if fault.for_s is not None:
            self._call_later(fault.for_s, begun.end)
        self._changed(begun)
        return begun

    def _end_pauses(self, broker: int) -> None:
        """The process that was stopped is gone."""
        for begun in list(self.active):
            if isinstance(begun.fault, Pause) and begun.fault.broker == broker:
                begun.end()

    def _ended(self, begun: ActiveFault) -> None:
        self.active.remove(begun)
        self._changed(begun)

    def _changed(self, begun: ActiveFault) -> None:
        """A fault has begun or ended, as it says itself: for drivers to override."""

    def end_all(self) -> None:
        """End every fault."""
        for begun in list(self.active):
            begun.end()

    # What they do.

    def bars_from_isr(self, topic_partition: TopicPartition, broker: int) -> bool:
        """Whether a fault keeps ``broker`` out of the ISR."""
        return any(
            isinstance(fault, ShrinkIsr)
            and (fault.topic, fault.partition, fault.broker) == (*topic_partition, broker)
            for fault in self._faults()
        )

    def is_paused(self, broker: int) -> bool:
        """Whether ``broker`` does nothing."""
        return any(isinstance(f, Pause) and f.broker == broker for f in self._faults())

    def holds_fetch(self, follower: int, leader: int) -> bool:
        """Whether a follower's fetch, or the response to it, has to wait."""
        return any(_holds_fetch(begun.fault, follower, leader) for begun in self.active)

    def cuts_off(self, one: int, other: int) -> bool:
        """Whether what a broker says to another has to wait."""
        return any(_cuts_off(fault, one, other) for fault in self._faults())

    def follower_lag_ms(self, follower: int) -> float:
        """Return how much longer it takes a follower to append what it fetched."""
        lag_ms = 0.0
        for begun in self.active:
            fault = begun.fault
            if isinstance(fault, SlowFollower) and fault.broker == follower:
                lag_ms += fault.lag_ms
        return lag_ms

    def refuses_produce(self, broker: int) -> bool:
        """Whether a produce that came to ``broker`` is to be refused; it counts as a strike."""
        for begun in self.active:
            if isinstance(begun.fault, RefuseProduces) and begun.fault.broker in (None, broker):
                begun.use()
                return True
        return False

    def response_fate(self, broker: int, api: str, client_id: str | None) -> ResponseFate:
        """Return what becomes of a response; each fault that has a part in it counts a strike."""
        fate = AS_USUAL
        for begun in list(self.active):
            fault = begun.fault
            if not isinstance(fault, AnswerFault):
                continue
            if not self._is_injected(begun, fault, broker, api, client_id):
                continue
            match fault:
                case LoseAnswers():
                    return fate._replace(lost=True, cut=fault.cut)
                case DelayAnswers():
                    fate = fate._replace(delay_ms=fate.delay_ms + fault.draw_ms(begun.random))
                case DuplicateAnswers():
                    fate = fate._replace(copies=fate.copies + 1)
                case TearAnswers():
                    fate = fate._replace(torn=fate.torn or fault)
                case SlowAnswers(bytes_per_s=rate):
                    fate = fate._replace(bytes_per_s=min(rate, fate.bytes_per_s or rate))
        return fate

    def matching(
        self, broker: int, api: str, client_id: str | None
    ) -> Iterator[tuple[ActiveFault, MessageFault]]:
        """Return the faults that strike such messages. They don't count it yet."""
        for begun in list(self.active):
            fault = begun.fault
            if isinstance(fault, MessageFault) and fault.concerns(broker, api, client_id):
                yield begun, fault

    def clock_jump_ms(self, broker: int) -> int:
        """Return by how much a broker's clock is wrong."""
        if not self.active:
            return 0
        return sum(
            fault.jump_ms
            for fault in self._faults()
            if isinstance(fault, JumpClock) and fault.broker == broker
        )

    def _is_injected(
        self,
        begun: ActiveFault,
        fault: MessageFault,
        broker: int,
        api: str,
        client_id: str | None,
    ) -> bool:
        """Whether a fault strikes this message; counts it."""
        return fault.concerns(broker, api, client_id) and draw_injection(begun, fault)

    def _faults(self) -> Iterator[Fault]:
        return (begun.fault for begun in self.active)


def draw_injection(begun: ActiveFault, fault: MessageFault) -> bool:
    """Whether a fault strikes one of those that concern it; it counts as a strike."""
    if not begun.active or (fault.share < 1 and begun.random.random() >= fault.share):
        return False
    begun.use()
    return True


def _holds_fetch(fault: Fault, follower: int, leader: int) -> bool:
    if isinstance(fault, StallFollower):
        return follower == fault.broker
    return _cuts_off(fault, follower, leader)


def _cuts_off(fault: Fault, one: int, other: int) -> bool:
    match fault:
        case Pause(broker=broker):
            return broker in (one, other)
        case CutLink(a=a, b=b):
            return {a, b} == {one, other}
    return False


_UNITS = {"by_ms": "ms", "throttle_ms": "ms", "jump_ms": "ms", "bytes_per_s": "bytes/s"}
"""What is shown of a fault with its unit."""


def fault_text(fault: Fault) -> str:
    """Return a fault in words: "stall follower 2 for 10 s"."""
    words = [fault.kind.replace("_", " "), *map(str, fault.brokers)]
    settings = fault.settings
    details = [str(settings[name]) for name in ("count", "api", "error") if name in settings]
    details += [f"{settings[name]} {unit}" for name, unit in _UNITS.items() if name in settings]
    if details:
        words.append(f"({', '.join(details)})")
    if fault.for_s is not None:
        words.append(f"for {fault.for_s:g} s")
    return " ".join(words)
