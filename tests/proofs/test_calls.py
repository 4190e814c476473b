"""The table of public calls is whole, and its states cover each pair of features."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory
from tests.proofs import calls
from tests.proofs.calls import CALLS, COVER, DEFINED_BY_USERS, DIMENSIONS


def public_names(kind: type, *made: object) -> set[str]:
    """Return the public methods and attributes of a class, but for names of earlier releases."""
    names = {name for one in (kind, *made) for name in dir(one) if not name.startswith("_")}
    return {name for name in names if all(hasattr(one, name) for one in made or (kind,))}


def covered(table: dict[str, calls.Call]) -> set[str]:
    """Return the names of the methods and attributes that a table calls."""
    return {call.covers or name for name, call in table.items()}


def test_table_has_each_name_of_an_operation() -> None:
    missing = public_names(DelayedOperation) - covered(CALLS) - DEFINED_BY_USERS
    assert not missing, f"tests/proofs/calls.py lacks {missing} of DelayedOperation"


def test_table_has_each_name_of_a_purgatory() -> None:
    with DelayedOperationPurgatory("named", reaper_enabled=False) as made:
        missing = public_names(DelayedOperationPurgatory, made) - covered(CALLS)
    assert not missing, f"tests/proofs/calls.py lacks {missing} of DelayedOperationPurgatory"


def test_states_cover_each_pair_of_levels() -> None:
    for (first, ones), (second, others) in combinations(DIMENSIONS.items(), 2):
        met = {(getattr(state, first), getattr(state, second)) for state in COVER.values()}
        assert met == set(product(ones, others)), (first, second)
    assert len(COVER) <= 20


def test_states_are_the_same_each_time() -> None:
    assert calls.pairwise_cover() == list(COVER.values())


@pytest.mark.parametrize("name", CALLS)
def test_call_is_right_in_each_state(name: str) -> None:
    for state in COVER.values():
        if name in calls.calls_in(state) and state.place != "new":
            scene = calls.Scene(state, (name,))
            scene.act(name)
            scene.finish()
            scene.assert_over()
