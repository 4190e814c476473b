"""The purgatory looks the same, whether its native parts are in use or not."""

from __future__ import annotations

import inspect

import pytest

from purgatory import DelayedOperation, DelayedOperationPurgatory
from purgatory.core.backend import NATIVE
from purgatory.core.counters import Counters, _PureCounters
from purgatory.core.operation import _PureOperation
from purgatory.core.purgatory import _PurePurgatory
from tests.unit.core.probe import Probe
from tests.unit.timer.described_alike import assert_described_alike, public_names

pytestmark = pytest.mark.skipif(not NATIVE, reason="the native parts are not in use")

PAIRS = [
    (DelayedOperation, _PureOperation),
    (DelayedOperationPurgatory, _PurePurgatory),
    (Counters, _PureCounters),
]


@pytest.mark.parametrize(("public", "pure"), PAIRS, ids=lambda one: one.__name__)
def test_native_classes_have_the_docstrings_of_the_pure_ones(public: type, pure: type) -> None:
    assert_described_alike(public, pure)


def test_native_operation_has_no_further_public_names() -> None:
    layers = {name for layer in DelayedOperation.__mro__ for name in vars(layer)}
    pure = public_names(_PureOperation) | {"wait", "call_when_settled", "try_complete"}
    assert {name for name in layers if not name.startswith("_")} == pure


def test_the_signature_of_an_operation_is_the_same_natively() -> None:
    assert inspect.signature(DelayedOperation) == inspect.signature(_PureOperation)

    class Plain(DelayedOperation):
        def try_complete(self) -> bool:
            return False

    assert inspect.signature(Plain) == inspect.signature(_PureOperation)


def test_a_class_with_an_init_of_its_own_has_its_signature() -> None:
    assert list(inspect.signature(Probe).parameters) == ["delay_ms", "lock", "ready", "hooks"]
