"""What can go wrong in a cluster: a class for each kind of fault, with its arguments.

A fault says what is asked for. It knows no sockets and no clock: whoever drives a cluster begins
and ends it. ``KINDS`` lists all kinds; from it they are asked for over HTTP, by a plan, and on the
command line.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from purgatory.kafka.errors import ClusterError

KINDS: dict[str, type[Fault]] = {}
"""The kinds of faults that can be asked for, by name: all classes below that have a ``kind``."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Args:
        for_s: how long, in seconds; None: until it is ended.

    Raises:
        ClusterError: an argument is wrong; says what would be right. Which brokers and partitions
            there are, only the cluster can tell.
    """

    kind: ClassVar[str]
    for_s: float | None = field(default=None, kw_only=True)

    def __init_subclass__(cls, kind: str | None = None) -> None:
        if kind is not None:
            cls.kind = kind
            KINDS[kind] = cls

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_right, right = _CHECKS.get(name, (None, ""))
            if is_right is not None and not is_right(value):
                raise ClusterError(f"{name}={value!r}: {right}")

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that are not the usual ones, by name, without how long it lasts."""
        given = ((one.name, getattr(self, one.name), one.default) for one in fields(self))
        return {name: value for name, value, usual in given if name != "for_s" and value != usual}

    @property
    def brokers(self) -> tuple[int, ...]:
        """The brokers that it names."""
        return tuple(value for name, value in vars(self).items() if name in ("broker", "a", "b"))


@dataclass(frozen=True)
class BrokerFault(Fault):
    """Something goes wrong with one broker."""

    broker: int


@dataclass(frozen=True)
class OneOrAllFault(Fault):
    """Something goes wrong with one ``broker``, or with all (None)."""

    broker: int | None = None

    @property
    def brokers(self) -> tuple[int, ...]:
        """The broker, if it is one."""
        return () if self.broker is None else (self.broker,)


@dataclass(frozen=True)
class CountedFault(OneOrAllFault):
    """It strikes ``count`` times, and ends then; None: as often as it can."""

    count: int | None = None


@dataclass(frozen=True)
class MessageFault(CountedFault):
    """It strikes messages between clients and brokers.

    Only those of one ``api``, such as "produce", and of the client with this ``client_id``, where
    these are given; of them each with the probability ``share``.
    """

    api: str | None = None
    client_id: str | None = None
    share: float = 1.0

    def concerns(self, broker: int, api: str, client_id: str | None) -> bool:
        """Whether a message is of those of which it strikes some."""
        return (
            self.broker in (None, broker)
            and self.api in (None, api)
            and self.client_id in (None, client_id)
        )


@dataclass(frozen=True)
class AnswerFault(MessageFault):
    """It strikes answers that were made."""


@dataclass(frozen=True)
class StallFollower(BrokerFault, kind="stall_follower"):
    """Have a broker copy nothing: what it follows stands still."""


@dataclass(frozen=True)
class SlowFollower(BrokerFault, kind="slow_follower"):
    """Have a broker take longer for what it copies: ``lag_ms`` for each answer."""

    lag_ms: float


@dataclass(frozen=True)
class ShrinkIsr(Fault, kind="shrink_isr"):
    """Put a follower out of a partition's ISR, and let it not come back meanwhile."""

    topic: str
    partition: int
    broker: int


@dataclass(frozen=True)
class Kill(BrokerFault, kind="kill"):
    """Kill a broker as SIGKILL does; it comes back when that ends.

    ``lost_records``: how many of the last records of each of its logs are gone then, as after
    damage to its disk.
    """

    lost_records: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Pause(BrokerFault, kind="pause"):
    """Have a broker do nothing, as SIGSTOP does: its connections stay, and nobody answers."""


@dataclass(frozen=True)
class CutLink(Fault, kind="cut_link"):
    """Let nothing pass between two brokers."""

    a: int
    b: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.a == self.b:
            raise ClusterError(f"brokers {self.a} and {self.b} are the same one")


@dataclass(frozen=True)
class LoseAnswers(AnswerFault, kind="lose_answers"):
    """Do what is asked, and lose the answer.

    The client's connection is ``cut`` with it. If not, the client waits for its timeout.
    """

    cut: bool = True


@dataclass(frozen=True)
class DelayAnswers(AnswerFault, kind="delay_answers"):
    """Send answers later: by ``by_ms``."""

    by_ms: float = field(kw_only=True)


@dataclass(frozen=True)
class DuplicateAnswers(AnswerFault, kind="duplicate_answers"):
    """Send answers twice."""


@dataclass(frozen=True)
class RefuseProduces(CountedFault, kind="refuse_produces"):
    """Refuse produces: clients send them again, and those behind overtake.

    They are refused with NOT_ENOUGH_REPLICAS.
    """


@dataclass(frozen=True)
class CutConnections(OneOrAllFault, kind="cut_connections"):
    """Cut the clients' connections, of one broker or of all (None)."""

    for_s: None = field(default=None, init=False)  # it is over at once


def fault_of(asked: object) -> Fault:
    """Return the fault that a mapping asks for: its kind, and the arguments of that kind.

    Raises:
        ClusterError: there is no such kind, or these are not its arguments.
    """
    if not isinstance(asked, dict) or "kind" not in asked:
        raise ClusterError('a fault is an object with a "kind": ' + ", ".join(KINDS))
    settings = dict(asked)
    kind = settings.pop("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ClusterError(f"there is no fault {kind!r}; there are {', '.join(KINDS)}")
    signature = inspect.signature(KINDS[kind])
    try:
        signature.bind(**settings)
    except TypeError as error:
        raise ClusterError(f"{kind}: {error}; it takes {', '.join(signature.parameters)}") from None
    return KINDS[kind](**settings)


def _is_number(value: Any) -> bool:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and abs(value) <= sys.float_info.max


_MILLISECONDS = (lambda it: _is_number(it) and it >= 0, "a number of milliseconds, 0 or more")

_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "for_s": (
        lambda it: it is None or (_is_number(it) and it > 0),
        "a number of seconds above 0, or left out for no end",
    ),
    "lag_ms": _MILLISECONDS,
    "by_ms": _MILLISECONDS,
    "client_id": (lambda it: it is None or isinstance(it, str), "the client.id of a client"),
    "count": (
        lambda it: it is None or (type(it) is int and it >= 1),
        "a whole number from 1 on, or left out for all",
    ),
    "lost_records": (lambda it: type(it) is int and it >= 0, "a whole number from 0 on"),
    "share": (lambda it: _is_number(it) and 0 < it <= 1, "a number above 0, and 1 at most"),
    "topic": (lambda it: isinstance(it, str), "the name of a topic"),
    "cut": (lambda it: isinstance(it, bool), "true or false"),
}
"""What an argument has to be, and how that is said, by its name: it means the same everywhere."""
