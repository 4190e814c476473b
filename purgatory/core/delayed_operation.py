"""An operation that waits for a condition or for its timeout, and is settled exactly once.

It is made in layers, each of which opens with its ground rules. What is done for every operation is
the core's (``operation_core``): what a watch list knows of it (``watchers``), how it is settled
(``settling``), how what is noted with it is served (``checking``), how it is submitted
(``submitting``). What is done for few is the same over either core: how it fails (``failing``), how
it tells those who wait (``telling``), how it is served later or let go (``handing_over``). Here is
what its users derive from.

Ground rules
------------
* What the rest of the core does with an operation are the functions at the end of those modules,
  beside what its users may do.
* Attributes start with ``_op_``: users derive from this class, and theirs must not collide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from purgatory.core.callback_check import check_callbacks
from purgatory.core.handing_over import HandedOver
from purgatory.core.timeout import FOREVER_MS


class DelayedOperation(HandedOver):
    """Work to be finished when a condition holds, or when ``delay_ms`` have passed.

    Derive from it. ``try_complete`` is required; the other callbacks do nothing by default. The
    callbacks of one operation never overlap, unless you call ``force_complete`` yourself from
    another thread. None of them runs in a turn of the lists, or under a lock of the timer. What
    one of them raises is logged and counted, and leaves the operation FAILED.

    Args:
        delay_ms: the longest wait, in milliseconds from when it is put on the watch lists.
        lock: held whenever the library runs a callback; for conditions over state that other code
            guards by the same lock. The library only ever tries it. Without one, no lock is used.

    Raises:
        TypeError: delay_ms is not an integer, or ``lock`` is no lock.
    """

    __slots__ = ()

    _timer_may_run_again = True  # what is settled once passes over what was done

    if not TYPE_CHECKING:
        __init__ = HandedOver.__init__  # here, where super() of a user's __init__ finds it first

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        check_callbacks(cls, DelayedOperation)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} can't be copied or pickled: it waits once; make a new one"
        )

    def __repr__(self) -> str:
        delay = "forever" if self.delay_ms >= FOREVER_MS else self.delay_ms
        return (
            f"<{type(self).__name__} {self._op_outcome.name} delay_ms={delay}"
            f"{f' keys={self._op_keys!r}' if self._op_keys else ''}>"
        )
