"""What is done for every operation: in native code where that was built, else in pure Python.

Both do the same. The layers above (``failing``, ``telling``, ``handing_over``, and what users see,
``delayed_operation``) are there once, and know of either nothing but its methods and attributes.
"""

from __future__ import annotations

from purgatory.core.submitting import Submitted as OperationCore

__all__ = ["OperationCore"]
