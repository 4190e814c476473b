"""Sets that are gone through in the order in which their members came.

Python's own go by hashes, which each process draws anew for strings: a client that goes through
brokers and topics does so in another order in each process. These are sets in all else. What their
operations make is one of them, and what a set of Python's holds comes in by its sorted order, where
it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

_SORTED = (str, bytes, tuple)
_PYTHONS = (set, frozenset)


def _in_order(members: Iterable[Any]) -> Iterable[Any]:
    if type(members) in _PYTHONS and isinstance(next(iter(members), None), _SORTED):
        try:
            return sorted(members)
        except TypeError:  # tuples of what can't be compared
            return sorted(members, key=repr)
    return members


class _SetType(type):
    """Takes every set for one of its own: who asks whether something is a set asks for no order."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, set)


class _FrozenSetType(type):
    """Likewise."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, frozenset)


class _Ordered:
    """What is made of either kind of set."""

    __slots__ = ()

    _members: dict[Any, None]

    def _of(self, members: Iterable[Any]) -> Any:
        kind: Any = type(self)
        return kind(members)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._members)

    def __reduce__(self) -> Any:
        return self.__class__, (list(self._members),)

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self._members))}}}" if self._members else "set()"

    def copy(self) -> Any:
        return self._of(self)

    def union(self, *others: Iterable[Any]) -> Any:
        members = dict(self._members)
        for other in others:
            members.update(dict.fromkeys(_in_order(other)))
        return self._of(members)

    def difference(self, *others: Iterable[Any]) -> Any:
        left_out = set().union(*others)
        return self._of([one for one in self._members if one not in left_out])

    def intersection(self, *others: Iterable[Any]) -> Any:
        kept = set(self._members).intersection(*others)
        return self._of(one for one in self._members if one in kept)

    def symmetric_difference(self, other: Iterable[Any]) -> Any:
        others = self._of(other)
        return self.difference(others).union(others.difference(self._members))

    def __or__(self, other: Any) -> Any:
        return self.union(other) if _is_set(other) else NotImplemented

    def __and__(self, other: Any) -> Any:
        return self.intersection(other) if _is_set(other) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return self.difference(other) if _is_set(other) else NotImplemented

    def __xor__(self, other: Any) -> Any:
        return self.symmetric_difference(other) if _is_set(other) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return self._of(other).union(self) if _is_set(other) else NotImplemented

    def __rand__(self, other: Any) -> Any:
        return self._of(other).intersection(self) if _is_set(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return self._of(other).difference(self) if _is_set(other) else NotImplemented

    def __rxor__(self, other: Any) -> Any:
        return self._of(other).symmetric_difference(self) if _is_set(other) else NotImplemented


class OrderedFrozenSet(_Ordered, frozenset[Any], metaclass=_FrozenSetType):
    """A frozen set that is gone through in the order in which its members came."""

    __slots__ = ("_members",)

    def __new__(cls, members: Iterable[Any] = ()) -> Any:
        known = dict.fromkeys(_in_order(members))
        made = super().__new__(cls, known)
        made._members = known
        return made


class OrderedSet(_Ordered, set[Any], metaclass=_SetType):
    """A set that is gone through in the order in which its members came."""

    __slots__ = ("_members",)

    def __init__(self, members: Iterable[Any] = ()) -> None:
        if members == ():  # as most begin
            self._members = {}
            return
        self._members = dict.fromkeys(_in_order(members))
        set.__init__(self, self._members)

    def add(self, member: Any) -> None:
        set.add(self, member)
        self._members[member] = None

    def discard(self, member: Any) -> None:
        set.discard(self, member)
        self._members.pop(member, None)

    def remove(self, member: Any) -> None:
        set.remove(self, member)
        del self._members[member]

    def pop(self) -> Any:
        for member in self._members:
            self.remove(member)
            return member
        raise KeyError("pop from an empty set")

    def clear(self) -> None:
        set.clear(self)
        self._members.clear()

    def update(self, *others: Iterable[Any]) -> None:
        for other in others:
            self._members.update(dict.fromkeys(_in_order(other)))
        set.update(self, self._members)

    def difference_update(self, *others: Iterable[Any]) -> None:
        members = self._members
        for one in set().union(*others):
            if one in members:
                del members[one]
                set.remove(self, one)

    def intersection_update(self, *others: Iterable[Any]) -> None:
        self._hold(self.intersection(*others))

    def symmetric_difference_update(self, other: Iterable[Any]) -> None:
        self._hold(self.symmetric_difference(other))

    def _hold(self, members: OrderedSet) -> None:
        self.clear()
        self.update(members)

    def __ior__(self, other: Any) -> Any:
        return self._changed_by(self.update, other)

    def __iand__(self, other: Any) -> Any:
        return self._changed_by(self.intersection_update, other)

    def __isub__(self, other: Any) -> Any:
        return self._changed_by(self.difference_update, other)

    def __ixor__(self, other: Any) -> Any:
        return self._changed_by(self.symmetric_difference_update, other)

    def _changed_by(self, change: Callable[[Any], None], other: Any) -> Any:
        if not _is_set(other):
            return NotImplemented
        change(other)
        return self


def _is_set(other: Any) -> bool:
    return isinstance(other, set | frozenset)
