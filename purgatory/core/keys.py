"""Keys to watch: those that Kafka has, and checks of those that a caller gives.

Anything hashable is a key. Kafka's keys are named tuples, and as its case classes they are equal
only within one type: a ``GroupJoinKey`` never meets a ``GroupSyncKey`` of the same group on one
watch list, nor a plain tuple.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

LEAST_NUMBER, GREATEST_NUMBER = -(2**63), 2**63 - 1
"""The range of thresholds and of values."""

T = TypeVar("T")
K_co = TypeVar("K_co", covariant=True)


class KeyCollection(Protocol[K_co]):
    """A list, tuple, set or dict of keys. A ``str`` is not one: ``in`` looks for text in it."""

    def __contains__(self, key: object, /) -> bool: ...

    def __iter__(self) -> Iterator[K_co]: ...


Keys: TypeAlias = KeyCollection[Hashable] | Iterator[Hashable]
"""The type of an argument for keys. Type checkers refuse a single ``str`` there."""


_KINDS: set[type] = {tuple}
"""The types of Kafka's keys, and that of plain tuples."""


def _equal_within_type(kind: type[T]) -> type[T]:
    """Have instances of ``kind``, a named tuple, equal those of ``kind`` alone.

    Another named tuple decides for itself, whichever stands first: else ``a == b`` would differ
    from ``b == a``, and a dict would find a key or not by the order of two insertions.
    """
    _KINDS.add(kind)

    def is_equal(one: tuple[object, ...], other: object) -> Any:
        if type(other) is kind:
            return tuple.__eq__(one, other)
        return False if type(other) in _KINDS else NotImplemented

    def is_different(one: tuple[object, ...], other: object) -> Any:
        equal = is_equal(one, other)
        return equal if equal is NotImplemented else not equal

    # The hash is C's, as of any tuple: it is asked for at each event.
    methods = {"__eq__": is_equal, "__ne__": is_different, "__hash__": tuple.__hash__}
    for name, method in methods.items():
        setattr(kind, name, method)
    return kind


@_equal_within_type
class TopicPartitionOperationKey(NamedTuple):
    """A partition: produce, fetch and delete-records waits."""

    topic: str
    partition: int


@_equal_within_type
class TopicKey(NamedTuple):
    """A topic: its creation or deletion."""

    topic: str


@_equal_within_type
class MemberKey(NamedTuple):
    """A member of a consumer group: its heartbeat."""

    group_id: str
    member_id: str


@_equal_within_type
class MemberRebalanceKey(NamedTuple):
    """A member of a consumer group: the end of its rebalance."""

    group_id: str
    member_id: str


@_equal_within_type
class GroupJoinKey(NamedTuple):
    """A consumer group whose members are joining."""

    group_id: str


@_equal_within_type
class GroupSyncKey(NamedTuple):
    """A consumer group whose members wait for their assignment."""

    group_id: str


@_equal_within_type
class TransactionKey(NamedTuple):
    """A transactional id: its transaction's end."""

    transactional_id: str


def check_hashable(key: Hashable) -> None:
    """Raise TypeError if ``key`` can't be a key."""
    try:
        hash(key)
    except TypeError:
        raise TypeError(
            f"a key must be hashable, and {key!r} ({type(key).__name__}) is not; "
            "use a tuple or a frozen dataclass"
        ) from None


def checked_keys(keys: Keys, thresholds: Mapping[Hashable, int] | None) -> tuple[Hashable, ...]:
    """Return ``keys`` and those of ``thresholds``, each once."""
    if type(keys) is tuple:  # nearly always, with one or none
        if thresholds and not keys:
            return tuple(thresholds)  # each once
        if len(keys) == 1 and not thresholds:
            check_hashable(keys[0])
            return keys
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys must be a list of keys, not the single {keys!r}: use [{keys!r}]")
    keys = (*keys, *thresholds) if thresholds else tuple(keys)
    try:
        unique = len(set(keys))
    except TypeError:
        for key in keys:
            check_hashable(key)
        raise
    if not unique:
        raise ValueError("keys is empty: an operation on no key could only expire")
    return keys if unique == len(keys) else tuple(dict.fromkeys(keys))


def checked_thresholds(thresholds: Mapping[Any, int]) -> dict[Hashable, int]:
    """Return a copy of ``thresholds``, whose numbers are integers of 64 bits."""
    # A dict is the usual: to ask an abstract class costs ten times as much.
    if type(thresholds) is not dict and not isinstance(thresholds, Mapping):
        raise TypeError(f"thresholds must map keys to numbers, as in {{key: 42}}: {thresholds!r}")
    return {
        key: (
            number
            if type(number) is int and LEAST_NUMBER <= number <= GREATEST_NUMBER
            else checked_number("threshold", key, number)
        )
        for key, number in thresholds.items()
    }


def checked_number(what: str, key: Hashable, number: object) -> int:
    """Return ``number``, a threshold or a value of ``key``, as a plain int of 64 bits.

    Integers of other libraries pass; a bool does not, nor does a float: nan is neither below nor
    above any threshold.

    Raises:
        TypeError: it is no integer.
        ValueError: it has more than 64 bits.
    """
    if type(number) is not int:
        try:
            if isinstance(number, bool):
                raise TypeError
            number = int(operator.index(number))  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(f"the {what} of {key!r} must be an int, not {number!r}") from None
    if not LEAST_NUMBER <= number <= GREATEST_NUMBER:
        raise ValueError(f"the {what} of {key!r} must fit 64 bits, which this one does not")
    return number
