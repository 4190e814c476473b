"""The purgatory looks the same, whether its native parts are in use or not."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.core.counters import Counters, PureCounters
from purgatory.core.purgatory_core import PurePurgatoryCore
from purgatory.core.submitting import Submitted
from purgatory.core.which_core import NATIVE
from tests.core.probe import Probe

pytestmark = pytest.mark.skipif(not NATIVE, reason="the native parts are not in use")

PAIRS = [
    (DelayedOperation, Submitted),
    (DelayedOperationPurgatory, PurePurgatoryCore),
    (Counters, PureCounters),
]


def public_names(one: type) -> list[str]:
    """What its users see."""
    return [name for name in dir(one) if not name.startswith("_")]


@pytest.mark.parametrize(("public", "pure"), PAIRS, ids=lambda one: one.__name__)
def test_what_is_native_says_of_itself_what_pure_python_says(public: type, pure: type) -> None:
    names = public_names(pure)
    assert names
    for name in names:
        native, reference = getattr(public, name), getattr(pure, name)
        if not (callable(reference) or isinstance(reference, property)):
            continue  # an attribute
        assert inspect.cleandoc(native.__doc__) == inspect.cleandoc(reference.__doc__), name
        if callable(reference):
            native_parameters = inspect.signature(native).parameters.values()
            parameters = inspect.signature(reference).parameters.values()
            assert [(one.name, one.kind) for one in native_parameters] == [
                (one.name, one.kind) for one in parameters
            ], name
            assert [one.default for one in native_parameters] == [
                one.default for one in parameters
            ], name


def test_an_operation_has_no_public_name_that_pure_python_has_not() -> None:
    layers = {name for layer in DelayedOperation.__mro__ for name in vars(layer)}
    pure = set(public_names(Submitted)) | {"wait", "call_when_settled", "try_complete"}
    assert {name for name in layers if not name.startswith("_")} == pure


def test_how_an_operation_is_made_is_told_alike() -> None:
    assert inspect.signature(DelayedOperation) == inspect.signature(Submitted)

    class Plain(DelayedOperation):
        def try_complete(self) -> bool:
            return False

    assert inspect.signature(Plain) == inspect.signature(Submitted)


def test_a_class_with_an_init_of_its_own_tells_of_that() -> None:
    assert list(inspect.signature(Probe).parameters) == ["delay_ms", "lock", "ready", "hooks"]


def test_an_operation_knows_nothing_of_signatures() -> None:
    """What `inspect` asks for is of the class, and for nobody else."""
    native: Any = Probe()
    with pytest.raises(AttributeError):
        _ = native.__signature__
