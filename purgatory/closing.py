"""How a purgatory is closed: intake first, then the pending operations, then the threads.

Ground rules
------------
* ``stop_intake`` decides, under the purgatory's lock, which call closes it; only that one goes on.
* Nothing is taken after that, so what is pending only becomes less.
"""

from __future__ import annotations

import time
from threading import get_ident
from typing import TYPE_CHECKING, Literal, get_args

import structlog

from purgatory.delayed_operation import DelayedOperation
from purgatory.errors import PurgatoryClosedError
from purgatory.outcome import Outcome
from timer import TimerTask

if TYPE_CHECKING:
    from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory

ClosePolicy = Literal["expire", "fail", "leave"]
"""What closing does to pending operations: expire them now, fail them, or let go of them."""

POLL_S = 0.002
"""How often a lock of yours that is taken is tried again while the purgatory closes."""

_PENDING = Outcome.PENDING
_log = structlog.get_logger("purgatory")


def check_policy(policy: str) -> None:
    """Raise ValueError if ``policy`` is none."""
    if policy not in get_args(ClosePolicy):
        raise ValueError(
            f"pending must be one of {', '.join(get_args(ClosePolicy))}, not {policy!r}"
        )


def stop_intake(purgatory: DelayedOperationPurgatory) -> list[DelayedOperation] | None:
    """Return what is pending, to the first caller; None to the others."""
    with purgatory._lock:
        if purgatory._closed:
            return None
        purgatory._closed = True
        return _unclaimed(purgatory)


def settle_all(
    purgatory: DelayedOperationPurgatory, operations: list[DelayedOperation], policy: ClosePolicy
) -> None:
    """Expire, fail or let go of ``operations``; those whose lock is taken are left noted."""
    error = PurgatoryClosedError(f"purgatory {purgatory.name!r} was closed")
    for operation in operations:
        if policy == "leave":
            _let_go(purgatory, operation)
        elif policy == "expire":
            operation.run()
        else:
            operation._op_verdict = (Outcome.FAILED, error)
            operation._op_serve()


def drain(purgatory: DelayedOperationPurgatory, deadline_s: float) -> None:
    """Wait until nothing is pending or being settled by others, trying taken locks again."""
    while not drained(purgatory):
        if time.monotonic() >= deadline_s:
            give_up(purgatory)
            return
        time.sleep(POLL_S)


def drained(purgatory: DelayedOperationPurgatory) -> bool:
    """Try what is pending once more, and say whether nothing is left."""
    operations, in_callbacks = _rest(purgatory)
    for operation in operations:
        operation._op_serve()
    return not operations and not in_callbacks


def give_up(purgatory: DelayedOperationPurgatory) -> None:
    """Fail what is pending without its lock."""
    operations, in_callbacks = _rest(purgatory)
    _log.error(
        "close_timed_out",
        purgatory=purgatory.name,
        locked=len(operations),
        in_callbacks=in_callbacks,
    )
    for operation in operations:
        operation._op_fail_without_lock(
            PurgatoryClosedError(
                f"purgatory {purgatory.name!r} was closed while the operation's lock was taken"
            )
        )


def _rest(purgatory: DelayedOperationPurgatory) -> tuple[list[DelayedOperation], int]:
    """Return what is pending, and how many are in callbacks on other threads."""
    me = get_ident()
    with purgatory._lock:
        in_callbacks = sum(
            operation._op_outcome is not _PENDING and operation._op_settler != me
            for operation in purgatory._pending.values()
        )
        return _unclaimed(purgatory), in_callbacks


def _unclaimed(purgatory: DelayedOperationPurgatory) -> list[DelayedOperation]:
    return [one for one in purgatory._pending.values() if one._op_outcome is _PENDING]


def _let_go(purgatory: DelayedOperationPurgatory, operation: DelayedOperation) -> None:
    TimerTask.cancel(operation)
    with purgatory._lock:
        if operation._op_outcome is not _PENDING:
            return
        purgatory._watchers.unwatch(operation)
        purgatory._pending.pop(id(operation), None)
    operation._op_tell()
