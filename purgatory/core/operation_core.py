"""What is done for every operation: in native code where that was built, else in pure Python.

Both do the same. The layers above (``failing``, ``telling``, ``handing_over``, and what users see,
``delayed_operation``) are there once, and know of either nothing but its methods and attributes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from purgatory.core.submitting import Submitted
from purgatory.core.which_core import NATIVE
from timer import TimerTask
from timer.implementation import describe_as

if TYPE_CHECKING or not NATIVE:
    OperationCore = Submitted
else:
    from purgatory.core.native.operation import NativeOperation, init_operation

    class OperationCore(NativeOperation, TimerTask):
        """What is submitted once, checked by one server at a time, and settled once."""

        __slots__ = ()

        __init__ = init_operation

        @abstractmethod
        def try_complete(self) -> bool:
            """Check the condition; if it holds, call ``force_complete`` and return its result."""

    describe_as(NativeOperation, Submitted)
    describe_as(OperationCore, Submitted)


__all__ = ["OperationCore"]
