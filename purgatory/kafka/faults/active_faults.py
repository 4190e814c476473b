"""The faults that are active, and what they do to brokers, links and messages.

The driver of a cluster calls this wherever a fault may be injected, and acts on the result: it
holds a fetch back, drops a response, sends it later. Kills and cuts of connections are its own.

Ground rules
------------
* One thread at a time calls it.
* A fault with ``for_s`` ends by the driver's ``call_later``, unless it ended before.
* A driver that holds something back checks again at each change (`_on_change`).
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple, Self

from purgatory.kafka.faults import (
    CountedFault,
    CutLink,
    DelayResponses,
    DuplicateResponses,
    Fault,
    JumpClock,
    Kill,
    LoseResponses,
    MessageFault,
    Pause,
    RefuseProduces,
    ResponseFault,
    ShrinkIsr,
    SlowFollower,
    SlowResponses,
    StallFollower,
    TruncateResponses,
)
from purgatory.kafka.topic_partition import TopicPartition
from timer.machine_time import time


class Endable(ABC):
    """Ends with ``end()``, or at the end of a ``with`` block."""

    @abstractmethod
    def end(self) -> None:
        """End the fault. Ending twice has no effect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()


class ActiveFault(Endable):
    """A fault that has begun.

    Args:
        number: from 1 on, in the order in which they began.
        fault: its kind and arguments.
        now_s: returns the time, in seconds, by a clock that never jumps.
        on_end: is called with it when it has ended.
        on_use: is called when it was injected.
        random: the random numbers of its injections.
    """

    def __init__(
        self,
        number: int,
        fault: Fault,
        now_s: Callable[[], float],
        on_end: Callable[[ActiveFault], None],
        on_use: Callable[[], None],
        random: Random,
    ) -> None:
        self.number = number
        self.fault = fault
        self.random = random
        self.began_s = now_s()
        self.ended_s: float | None = None
        self.uses = 0
        self.skipped = 0
        """The number of messages that have passed, of the first ``skip`` ones."""
        self._now_s = now_s
        self._on_end = on_end
        self._on_use = on_use

    def __repr__(self) -> str:
        settings = "".join(f" {name}={value!r}" for name, value in self.fault.settings.items())
        state = "active" if self.active else "ended"
        return f"<{type(self).__name__} {self.number} {self.fault.kind}{settings} {state}>"

    @property
    def active(self) -> bool:
        """Whether it has not ended."""
        return self.ended_s is None

    def end(self) -> None:
        """End the fault. Ending twice has no effect."""
        if self.active:
            self.forget()
            self._on_end(self)

    def forget(self) -> None:
        """Mark it as ended, without calling ``on_end``."""
        self.ended_s = self._now_s()

    def use(self) -> None:
        """Record that it was injected; the last of ``count`` times ends it."""
        self.uses += 1
        if isinstance(self.fault, CountedFault) and self.uses == self.fault.last_use:
            self.end()
        self._on_use()

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, with times in seconds since 1970."""
        zero_s = time.time() - self._now_s()
        return {
            "number": self.number,
            "kind": self.fault.kind,
            "settings": self.fault.settings,
            "began_s": zero_s + self.began_s,
            "ended_s": None if self.ended_s is None else zero_s + self.ended_s,
            "uses": self.uses,
        }


_MAX_RECENT = 50


class ResponseOutcome(NamedTuple):
    """The outcome of a response: it is sent ``delay_ms`` later, in ``copies``, or is lost.

    With a lost one, the client's connection may be ``cut``. Of a ``truncated`` one,
    ``truncated.keep_bytes`` are sent, and the connection is cut. The rate is ``bytes_per_s``; None:
    unlimited.
    """

    delay_ms: float = 0
    copies: int = 1
    lost: bool = False
    cut: bool = False
    truncated: TruncateResponses | None = None
    bytes_per_s: int | None = None


NORMAL_RESPONSE = ResponseOutcome()


class ActiveFaults:
    """The active faults.

    Args:
        now_s: returns the time, in seconds, by a clock that never jumps.
        call_later: calls a function in so many seconds.
        random: for faults without a seed.
    """

    def __init__(
        self,
        now_s: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
        random: Random,
    ) -> None:
        self.active: list[ActiveFault] = []
        self.recent: deque[ActiveFault] = deque(maxlen=_MAX_RECENT)
        self._numbers = itertools.count(1)
        self._now_s = now_s
        self._call_later = call_later
        self._random = random

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.active)} active>"

    # Their beginning and end.

    def _begin_fault(self, fault: Fault) -> ActiveFault:
        if isinstance(fault, Kill):
            # A killed process is not paused any more.
            for other in list(self.active):
                if isinstance(other.fault, Pause) and other.fault.broker == fault.broker:
                    other.end()
        seed = fault.seed if isinstance(fault, MessageFault) else None
        chance = self._random if seed is None else Random(seed)
        active_fault = ActiveFault(
            next(self._numbers), fault, self._now_s, self._on_end, self._on_use, chance
        )
        self.active.append(active_fault)
        self.recent.append(active_fault)
        if fault.for_s is not None:
            self._call_later(fault.for_s, active_fault.end)
        self._on_change(active_fault)
        return active_fault

    def _on_end(self, active_fault: ActiveFault) -> None:
        self.active.remove(active_fault)
        self._on_change(active_fault)

    def _on_change(self, active_fault: ActiveFault) -> None:
        """Called when a fault has begun or ended: for drivers to override."""

    def _on_use(self) -> None:
        """Called when a fault was injected: for drivers to override."""

    def end_all(self) -> None:
        """End every fault."""
        for active_fault in list(self.active):
            active_fault.end()

    # Their effects.

    def blocks_isr(self, topic_partition: TopicPartition, broker: int) -> bool:
        """Whether a fault keeps ``broker`` out of the ISR."""
        return any(
            isinstance(fault, ShrinkIsr)
            and (fault.topic, fault.partition, fault.broker) == (*topic_partition, broker)
            for fault in self._faults()
        )

    def is_paused(self, broker: int) -> bool:
        """Whether ``broker`` is paused."""
        return any(isinstance(f, Pause) and f.broker == broker for f in self._faults())

    def blocks_fetch(self, follower: int, leader: int) -> bool:
        """Whether a follower's fetch, or the response to it, has to wait."""
        return any(
            follower == fault.broker
            if isinstance(fault, StallFollower)
            else _cuts_link(fault, follower, leader)
            for fault in self._faults()
        )

    def cuts_link(self, first: int, second: int) -> bool:
        """Whether a fault cuts the link between two brokers."""
        return any(_cuts_link(fault, first, second) for fault in self._faults())

    def follower_lag_ms(self, follower: int) -> float:
        """Return the delay that faults add to a follower's append, in milliseconds."""
        lag_ms = 0.0
        for active_fault in self.active:
            fault = active_fault.fault
            if isinstance(fault, SlowFollower) and fault.broker == follower:
                lag_ms += fault.lag_ms
        return lag_ms

    def refuses_produce(self, broker: int) -> bool:
        """Whether a produce of ``broker`` is refused; that counts as an injection."""
        return any(
            isinstance(fault, RefuseProduces) and draw_injection(active_fault, fault)
            for active_fault, fault in self.matching(broker, "produce", None)
        )

    def response_outcome(self, broker: int, api: str, client_id: str | None) -> ResponseOutcome:
        """Return the outcome of a response; it counts as an injection of each of its faults."""
        outcome = NORMAL_RESPONSE
        for active_fault in list(self.active):
            fault = active_fault.fault
            if not isinstance(fault, ResponseFault):
                continue
            if not self._is_injected(active_fault, fault, broker, api, client_id):
                continue
            match fault:
                case LoseResponses():
                    return outcome._replace(lost=True, cut=fault.cut)
                case DelayResponses():
                    outcome = outcome._replace(
                        delay_ms=outcome.delay_ms + fault.draw_ms(active_fault.random)
                    )
                case DuplicateResponses():
                    outcome = outcome._replace(copies=outcome.copies + 1)
                case TruncateResponses():
                    outcome = outcome._replace(truncated=outcome.truncated or fault)
                case SlowResponses(bytes_per_s=rate):
                    outcome = outcome._replace(bytes_per_s=min(rate, outcome.bytes_per_s or rate))
        return outcome

    def matching(
        self, broker: int, api: str, client_id: str | None
    ) -> Iterator[tuple[ActiveFault, MessageFault]]:
        """Return the faults that may be injected into a message, without counting."""
        for active_fault in list(self.active):
            fault = active_fault.fault
            if isinstance(fault, MessageFault) and fault.applies_to(broker, api, client_id):
                yield active_fault, fault

    def clock_jump_ms(self, broker: int) -> int:
        """Return by how much a broker's clock is ahead."""
        if not self.active:
            return 0
        return sum(
            fault.jump_ms
            for fault in self._faults()
            if isinstance(fault, JumpClock) and fault.broker == broker
        )

    def _is_injected(
        self,
        active_fault: ActiveFault,
        fault: MessageFault,
        broker: int,
        api: str,
        client_id: str | None,
    ) -> bool:
        """Whether a fault is injected into a message; counts it."""
        return fault.applies_to(broker, api, client_id) and draw_injection(active_fault, fault)

    def _faults(self) -> Iterator[Fault]:
        return (active_fault.fault for active_fault in self.active)


def draw_injection(active_fault: ActiveFault, fault: MessageFault) -> bool:
    """Draw whether a fault is injected into a message that it concerns, and count it if so."""
    if not active_fault.active:
        return False
    if active_fault.skipped < fault.skip:
        active_fault.skipped += 1
        return False
    if fault.share < 1 and active_fault.random.random() >= fault.share:
        return False
    active_fault.use()
    return True


def _cuts_link(fault: Fault, first: int, second: int) -> bool:
    match fault:
        case Pause(broker=broker):
            return broker in (first, second)
        case CutLink(a=a, b=b):
            return {a, b} == {first, second}
    return False


_UNITS = {"by_ms": "ms", "throttle_ms": "ms", "jump_ms": "ms", "bytes_per_s": "bytes/s"}
"""The arguments that are shown with their unit."""


def fault_text(fault: Fault) -> str:
    """Return a fault in words: "stall follower 2 for 10 s"."""
    words = [fault.kind.replace("_", " "), *map(str, fault.brokers)]
    settings = fault.settings
    details = [
        str(settings[name]) for name in ("count", "api", "error", "errors") if name in settings
    ]
    details += [f"{settings[name]} {unit}" for name, unit in _UNITS.items() if name in settings]
    if details:
        words.append(f"({', '.join(details)})")
    if fault.for_s is not None:
        words.append(f"for {fault.for_s:g} s")
    return " ".join(words)
