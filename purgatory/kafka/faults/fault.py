"""A fault: what goes wrong, with its arguments; and all kinds of them by name.

It says what is asked for. It knows no sockets and no clock: whoever drives a cluster begins and
ends it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults.fault_arguments import check_arguments
from purgatory.settings.problems import did_you_mean, known_names

KINDS: dict[str, type[Fault]] = {}
"""The kinds of faults that can be asked for, by name: all classes that have a ``kind``."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    ``is_simulated`` says whether the simulation has it too; others are about bytes, or about what
    simulated clients don't look at.

    Args:
        for_s: how long, in seconds; None: until it is ended.

    Raises:
        ClusterError: an argument is wrong; says what would be right. Which brokers and partitions
            there are, only the cluster can tell.
    """

    kind: ClassVar[str]
    is_simulated: ClassVar[bool] = True
    for_s: float | None = field(default=None, kw_only=True)

    def __init_subclass__(cls, kind: str | None = None) -> None:
        if kind is not None:
            cls.kind = kind
            KINDS[kind] = cls

    def __post_init__(self) -> None:
        check_arguments(vars(self))

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
        name = kind if isinstance(kind, str) else ""
        raise ClusterError(f"there is no fault {kind!r}; {known_names(name, KINDS)}")
    signature = inspect.signature(KINDS[kind])
    if unknown := [name for name in settings if name not in signature.parameters]:
        right = did_you_mean(unknown[0], signature.parameters)
        taken = ", ".join(signature.parameters) or "nothing"
        raise ClusterError(f"{kind}: takes no {unknown[0]!r}; {right}it takes {taken}")
    try:
        signature.bind(**settings)
    except TypeError as error:
        raise ClusterError(f"{kind}: {error}; it takes {', '.join(signature.parameters)}") from None
    return KINDS[kind](**settings)
