"""The methods that begin faults: a wrong name or argument is told with what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory.cluster.fault_injection import FaultMethod, FaultMethods
from purgatory.kafka.errors import ClusterError
from purgatory.kafka.faults import Fault, Kill


class Begun(FaultMethods[Fault]):
    """Returns each fault."""

    def _begin(self, fault: Fault) -> Fault:
        return fault

    kill = FaultMethod(Kill)


def test_wrong_name_of_a_fault_is_told_with_the_nearest() -> None:
    faults: Any = Begun()
    with pytest.raises(AttributeError, match=r"no fault\.lose_response: .* lose_responses, "):
        faults.lose_response(broker=1)
    assert not hasattr(faults, "_not_there")


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({}, "fault.kill: missing a required argument: 'broker'; it takes broker, "),
        ({"broker": 1, "seconds": 2}, "unexpected keyword argument 'seconds'; it takes broker, "),
    ],
)
def test_wrong_argument_of_a_fault_is_told(keywords: dict[str, Any], said: str) -> None:
    faults: Any = Begun()
    with pytest.raises(TypeError) as raised:
        faults.kill(**keywords)
    assert said in str(raised.value)
    assert str(raised.value).endswith("for_s, lost_records")


def test_valid_fault_begins_and_an_invalid_value_is_refused() -> None:
    assert Begun().kill(1, for_s=2) == Kill(1, for_s=2)
    with pytest.raises(ClusterError):
        Begun().kill(1, for_s=-2)
