"""Sets in insertion order behave as Python's sets in all other respects."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import aiokafka
import aiokafka.cluster
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.virtual import World
from purgatory.virtual.determinism import OrderedFrozenSet, OrderedSet

members = st.lists(st.sampled_from("abcdefgh"), max_size=6)
MADE: list[Callable[[Any, Any], Any]] = [
    lambda one, other: one | other,
    lambda one, other: one & other,
    lambda one, other: one - other,
    lambda one, other: one ^ other,
    lambda one, other: one.union(other, "xy"),
    lambda one, other: one.intersection(other, "abcd"),
    lambda one, other: one.difference(other, "a"),
    lambda one, other: one.symmetric_difference(other),
    lambda one, other: one.copy(),
    lambda one, other: copy.deepcopy(one),
    lambda one, other: pickle.loads(pickle.dumps(one)),
]
CHANGES: list[Callable[[Any, Any], Any]] = [
    lambda one, other: one.update(other, "z"),
    lambda one, other: one.difference_update(other),
    lambda one, other: one.intersection_update(other),
    lambda one, other: one.symmetric_difference_update(other),
    lambda one, other: one.__ior__(other),
    lambda one, other: one.__iand__(other),
    lambda one, other: one.__isub__(other),
    lambda one, other: one.__ixor__(other),
    lambda one, other: [one.add(member) for member in other],
    lambda one, other: [one.discard(member) for member in other],
    lambda one, other: one.clear(),
]


def _check(ordered: Any) -> None:
    assert list(ordered) == list(ordered._members)
    assert len(ordered) == len(ordered._members)
    assert set(ordered) == set(ordered._members)


@given(members, members, st.sampled_from(MADE), st.booleans(), st.booleans())
def test_set_operations_match_those_of_python(
    one: list[str], other: list[str], make: Callable[[Any, Any], Any], frozen: bool, plain: bool
) -> None:
    kind, plain_kind = (OrderedFrozenSet, frozenset) if frozen else (OrderedSet, set)
    right: Any = plain_kind(other) if plain else kind(other)
    made = make(kind(one), right)
    assert made == make(plain_kind(one), plain_kind(other))
    assert type(made) is kind
    _check(made)
    assert list(make(kind(one), right)) == list(made)


@given(members, members, st.sampled_from("|&-^"))
def test_plain_set_can_be_the_left_operand(one: list[str], other: list[str], sign: str) -> None:
    make = {"|": MADE[0], "&": MADE[1], "-": MADE[2], "^": MADE[3]}[sign]
    made = make(set(one), OrderedSet(other))
    assert made == make(set(one), set(other))
    _check(made)


@given(members, st.lists(st.tuples(st.sampled_from(CHANGES), members), max_size=5))
def test_set_updates_match_those_of_python(
    first: list[str], changes: list[tuple[Callable[[Any, Any], Any], list[str]]]
) -> None:
    ordered, plain = OrderedSet(first), set(first)
    for change, other in changes:
        change(ordered, set(other))
        change(plain, set(other))
        assert ordered == plain
        _check(ordered)


def test_ordered_sets_iterate_in_insertion_order() -> None:
    ordered = OrderedSet("ca")
    ordered.add("b")
    ordered.add("c")
    assert list(ordered) == ["c", "a", "b"]
    assert ordered.pop() == "c"
    assert repr(ordered) == "{'a', 'b'}" and repr(OrderedSet()) == "set()"
    ordered.remove("a")
    with pytest.raises(KeyError):
        ordered.remove("a")
    ordered.clear()
    with pytest.raises(KeyError):
        ordered.pop()


def _digest_of_broadcasts(padding: int) -> str:
    """Send to sets of connections and queues, whose addresses depend on the padding."""
    clients: set[asyncio.StreamWriter] = set()
    queues: set[asyncio.Queue[str]] = set()

    async def broadcast(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.add(writer)
        queues.add(asyncio.Queue())

    async def application() -> None:
        server = await asyncio.start_server(broadcast, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        streams = []
        for number in range(20):
            kept.append(bytearray(padding * number))
            streams.append(await asyncio.open_connection("localhost", port))
        await asyncio.sleep(1)
        assert len({writer.transport for writer in clients}) == len(queues) == 20
        name = asyncio.current_task().get_name()  # type: ignore[union-attr]
        for writer, queue in zip(clients, queues, strict=True):
            queue.put_nowait(name)
            writer.write(f"{len(kept)} {queue.get_nowait()}".encode())
        await asyncio.sleep(1)
        for _, writer in streams:
            writer.close()

    kept: list[bytearray] = []
    with World(seed=3) as world:
        world.run(application())
    assert all(writer in clients for writer in clients), "members are found once the world is left"
    return world.digest


def test_seed_determines_the_order_of_patched_sets() -> None:
    assert len({_digest_of_broadcasts(padding) for padding in (0, 1, 16, 100, 3_000)}) == 1


def test_members_taken_from_a_plain_set_are_sorted() -> None:
    names = {f"topic-{number}" for number in range(20)}
    assert list(OrderedSet(names)) == sorted(names) == list(OrderedFrozenSet(names))
    mixed = {("a", 1), ("a", None)}
    assert list(OrderedSet(mixed)) == sorted(mixed, key=repr)


def test_ordered_sets_are_instances_of_set() -> None:
    assert isinstance({1}, OrderedSet) and isinstance(OrderedSet(), set)
    assert isinstance(frozenset(), OrderedFrozenSet) and not isinstance([], OrderedSet)
    assert isinstance({1}, tuple | OrderedSet | list)
    assert OrderedSet("ab") == {"a", "b"} and hash(OrderedFrozenSet("ab")) == hash(frozenset("ab"))


def test_aiokafka_uses_ordered_sets_only_in_a_world() -> None:
    module = vars(aiokafka.cluster)
    with World() as world:
        world.pass_time("1s")
        assert module["set"] is OrderedSet and module["frozenset"] is OrderedFrozenSet
    assert "set" not in module and "frozenset" not in module


def test_missing_module_of_a_client_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "aiokafka.nothing", None)
    with World() as world:
        world.pass_time("1s")
