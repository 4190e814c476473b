"""A fault that can be injected, and the checks of its arguments.

A fault is data, without sockets and clocks: the driver of a cluster begins and ends it. An argument
means the same for every kind.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any, ClassVar

from purgatory.kafka.errors import ClusterError, ErrorCode
from purgatory.settings.problems import did_you_mean, known_names
from purgatory.settings.typed_duration import OrTimedelta, default, timed_dataclass

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def check_arguments(values: Mapping[str, Any]) -> None:
    """Check each argument by itself.

    Raises:
        ClusterError: an argument is invalid; the message says what is valid.
    """
    for name, value in values.items():
        is_valid, hint = _CHECKS.get(name, (None, ""))
        if is_valid is not None and not is_valid(value):
            raise ClusterError(f"{name}={value!r}: {hint}")
    if values.get("error") is not None:
        error_number(values["error"])
    for error in values.get("errors", ()):
        if error not in (None, "none"):
            error_number(error)


def error_number(name: object) -> int:
    """Return the code of a Kafka error by its name, such as "NOT_LEADER_OR_FOLLOWER".

    Raises:
        ClusterError: no error has that name; the message suggests the nearest one.
    """
    number = ErrorCode.__members__.get(name) if isinstance(name, str) else None
    if number is None:
        hint = suggest_name(str(name).upper().replace("-", "_"), list(ErrorCode.__members__))
        raise ClusterError(f"error={name!r}: Kafka has no such error; {hint}")
    if number == ErrorCode.NONE:
        raise ClusterError("error='NONE' is not an error; name one, such as REQUEST_TIMED_OUT")
    return number


def suggest_name(name: str, names: list[str]) -> str:
    """Return the names most like ``name``, in words."""
    return f"the nearest are {', '.join(difflib.get_close_matches(name, names, 3, 0.0))}"


def normalize_api_name(name: str) -> str:
    """Return an API's name in snake case: "list_offsets" for "ListOffsets"."""
    return _CAPITAL.sub("_", name).replace("-", "_").lower()


def kafka_api_name(name: str) -> str:
    """Return an API's name as Kafka writes it: "ListOffsets" for "list_offsets"."""
    return "".join(part.capitalize() for part in name.split("_"))


def _is_number(value: Any) -> bool:
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return is_one and abs(value) <= sys.float_info.max


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _text_or_none(expected: str) -> tuple[Callable[[Any], bool], str]:
    return (lambda it: it is None or isinstance(it, str)), expected


_MILLISECONDS = (
    lambda it: _is_number(it) and it >= 0,
    "a number of milliseconds, 0 or more, or a timedelta",
)

_MILLISECONDS_OR_NONE = (
    lambda it: it is None or (_is_number(it) and it >= 0),
    "a number of milliseconds, 0 or more, or a timedelta",
)

_BOOLEAN = (lambda it: isinstance(it, bool), "true or false")
_MAX_JUMP_MS = 50 * 365 * 24 * 3_600_000
"""A longer jump back from today would end before 1970, when records have no times."""

_MAX_S = 1_000_000_000

_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "for_s": (
        lambda it: it is None or (_is_number(it) and 0 < it <= _MAX_S),
        f"a number of seconds above 0, or a timedelta, up to {_MAX_S:,} s, or left out for no end",
    ),
    "lag_ms": _MILLISECONDS,
    "by_ms": _MILLISECONDS,
    "to_ms": _MILLISECONDS_OR_NONE,
    "p75_ms": _MILLISECONDS_OR_NONE,
    "throttle_ms": (
        lambda it: _is_whole(it, 1) and it < 2**31,
        "a whole number of milliseconds from 1 to 2147483647",
    ),
    "jump_ms": (
        lambda it: type(it) is int and 0 < abs(it) <= _MAX_JUMP_MS,
        "a whole number of milliseconds: forward, or back below 0, and 50 years at most",
    ),
    "api": _text_or_none('the name of an API, such as "Produce", or left out for all'),
    "client_id": _text_or_none("the client.id of a client"),
    "group_id": _text_or_none("the name of a group"),
    "transactional_id": _text_or_none("the transactional.id of a producer"),
    "topic": _text_or_none("the name of a topic"),
    "partition": (lambda it: it is None or _is_whole(it, 0), "the number of a partition, from 0"),
    "count": (
        lambda it: it is None or _is_whole(it, 1),
        "a whole number from 1 on, or left out for all",
    ),
    "skip": (lambda it: _is_whole(it, 0), "a whole number from 0 on"),
    "seed": (lambda it: it is None or type(it) is int, "a whole number, or left out"),
    "lost_records": (lambda it: _is_whole(it, 0), "a whole number from 0 on"),
    "epochs": (lambda it: _is_whole(it, 1), "a whole number from 1 on"),
    "keep_bytes": (lambda it: it is None or _is_whole(it, 0), "a whole number from 0 on"),
    "bytes_per_s": (lambda it: _is_whole(it, 1), "a whole number from 1 on"),
    "share": (lambda it: _is_number(it) and 0 < it <= 1, "a number above 0, and 1 at most"),
    "errors": (
        lambda it: isinstance(it, list | tuple),
        "a list of names, with none where a request passes",
    ),
    "cut": _BOOLEAN,
    "after": _BOOLEAN,
}
"""By argument: whether a value is valid, and the valid values in words."""

KINDS: dict[str, type[Fault]] = {}
"""All classes of faults that have a ``kind``, by its name."""

FORMER_KINDS: Mapping[str, str] = {
    "answer": "return_error",
    "delay_answers": "delay_responses",
    "duplicate_answers": "duplicate_responses",
    "lose_answers": "lose_responses",
    "slow_answers": "slow_responses",
    "tear_answers": "truncate_responses",
    "turn_back_epochs": "lower_leader_epochs",
}
"""The present name of a kind by the name that it had in an earlier release."""


@timed_dataclass
class Fault:
    """A fault to be injected.

    ``is_simulated`` is whether the simulation supports it; other faults concern bytes, or fields
    that simulated clients do not read.

    Args:
        for_s: the duration in seconds, or a timedelta; None: until the fault is ended.

    Raises:
        ClusterError: an argument is invalid; the message says what is valid. Brokers and partitions
            are checked when the fault begins.
    """

    kind: ClassVar[str]
    is_simulated: ClassVar[bool] = True
    for_s: OrTimedelta[float | None] = field(default=default(None), kw_only=True)

    def __init_subclass__(cls, kind: str | None = None) -> None:
        if kind is not None:
            cls.kind = kind
            KINDS[kind] = cls

    def __post_init__(self) -> None:
        check_arguments(vars(self))

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that are not the defaults, by name, without ``for_s``."""
        values = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return {
            name: value for name, value, default in values if name != "for_s" and value != default
        }

    @property
    def brokers(self) -> tuple[int, ...]:
        """The brokers that it names."""
        return tuple(value for name, value in vars(self).items() if name in ("broker", "a", "b"))


@timed_dataclass
class BrokerFault(Fault):
    """A fault of one broker."""

    broker: int


@timed_dataclass
class OneOrAllFault(Fault):
    """A fault of one ``broker``, or of all (None)."""

    broker: int | None = None

    @property
    def brokers(self) -> tuple[int, ...]:
        """The broker, if it is one."""
        return () if self.broker is None else (self.broker,)


@timed_dataclass
class CountedFault(OneOrAllFault):
    """A fault that ends when it was injected ``count`` times; None: never."""

    count: int | None = None

    @property
    def last_use(self) -> int | None:
        """The use that ends the fault; None: none does."""
        return self.count


def parse_fault(arguments: object) -> Fault:
    """Return a fault from a mapping of its kind and the arguments of that kind.

    Raises:
        ClusterError: there is no such kind, or these are not its arguments.
    """
    if not isinstance(arguments, dict) or "kind" not in arguments:
        raise ClusterError('a fault is an object with a "kind": ' + ", ".join(KINDS))
    settings = dict(arguments)
    kind = settings.pop("kind")
    if isinstance(kind, str) and kind in FORMER_KINDS:
        raise ClusterError(f"the fault {kind} is gone; use {FORMER_KINDS[kind]}")
    if not isinstance(kind, str) or kind not in KINDS:
        name = kind if isinstance(kind, str) else ""
        raise ClusterError(f"there is no fault {kind!r}; {known_names(name, KINDS)}")
    signature = inspect.signature(KINDS[kind])
    if unknown := [name for name in settings if name not in signature.parameters]:
        hint = did_you_mean(unknown[0], signature.parameters)
        accepted = ", ".join(signature.parameters) or "nothing"
        raise ClusterError(f"{kind}: takes no {unknown[0]!r}; {hint}it takes {accepted}")
    try:
        signature.bind(**settings)
    except TypeError as error:
        raise ClusterError(f"{kind}: {error}; it takes {', '.join(signature.parameters)}") from None
    return KINDS[kind](**settings)
