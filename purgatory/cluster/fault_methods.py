"""A method for each kind of fault, the same for those on the event loop and for blocking code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Generic, ParamSpec, TypeVar

from purgatory.kafka import faults
from purgatory.kafka.faults import Fault

Arguments = ParamSpec("Arguments")
Begun = TypeVar("Begun")


class FaultMethod(Generic[Arguments]):
    """A method that takes the arguments of a kind of fault, and begins a fault of that kind."""

    def __init__(self, kind: Callable[Arguments, Fault]) -> None:
        self._kind = kind

    def __get__(
        self, owner: FaultMethods[Begun], of_class: type | None = None
    ) -> Callable[Arguments, Begun]:
        @wraps(self._kind, updated=())
        def begin(*arguments: Arguments.args, **named: Arguments.kwargs) -> Begun:
            return owner._begin(self._kind(*arguments, **named))

        return begin


class FaultMethods(ABC, Generic[Begun]):
    """Each method begins a fault and returns it.

    It lasts for ``for_s`` seconds, until ``end()``, until ``count`` is used up, or, as a context
    manager, to the end of the ``with`` block. Faults add up. All raise `ClusterError` where an
    argument is wrong, and nothing has begun then.
    """

    @abstractmethod
    def _begin(self, fault: Fault) -> Begun:
        """Begin a fault."""

    stall_follower = FaultMethod(faults.StallFollower)
    slow_follower = FaultMethod(faults.SlowFollower)
    shrink_isr = FaultMethod(faults.ShrinkIsr)
    pause = FaultMethod(faults.Pause)
    cut_link = FaultMethod(faults.CutLink)
    lose_answers = FaultMethod(faults.LoseAnswers)
    delay_answers = FaultMethod(faults.DelayAnswers)
    duplicate_answers = FaultMethod(faults.DuplicateAnswers)
    tear_answers = FaultMethod(faults.TearAnswers)
    slow_answers = FaultMethod(faults.SlowAnswers)
    refuse_produces = FaultMethod(faults.RefuseProduces)
    answer = FaultMethod(faults.Answer)
    load_coordinator = FaultMethod(faults.LoadCoordinator)
    throttle = FaultMethod(faults.Throttle)
    turn_back_epochs = FaultMethod(faults.TurnBackEpochs)
    freeze_metadata = FaultMethod(faults.FreezeMetadata)
    jump_clock = FaultMethod(faults.JumpClock)
