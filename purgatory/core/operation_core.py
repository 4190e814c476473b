"""What is done for every operation: in native code where that was built, else in pure Python.

Both do the same. The layers above (``failing``, ``telling``, ``handing_over``, and what users see,
``delayed_operation``) are there once, and know of either nothing but its methods and attributes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from purgatory.core.which_core import NATIVE
from timer import TimerTask

if TYPE_CHECKING or not NATIVE:
    from purgatory.core.submitting import Submitted as OperationCore
else:
    from purgatory.core.native.operation import NativeOperation
    from purgatory.core.native_signature import NativeSignature

    class OperationCore(NativeOperation, TimerTask):
        """What is submitted once, checked by one server at a time, and settled once."""

        __slots__ = ()

        __signature__ = NativeSignature(NativeOperation)

        @abstractmethod
        def try_complete(self) -> bool:
            """Check the condition; if it holds, call ``force_complete`` and return its result."""


__all__ = ["OperationCore"]
