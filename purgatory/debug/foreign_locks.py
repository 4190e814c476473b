"""Who holds the locks that operations wait for.

An operation whose user's lock is taken is tried again and again; as long as that lasts, its expiry
is late and its event is not answered. A ``threading.RLock`` tells which thread holds it, and so
where that thread is just now; a ``threading.Lock`` doesn't know.
"""

from __future__ import annotations

import re
import sys
import threading
import traceback
from typing import Any

from purgatory.core.operation import users_lock
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import cut_repr

FRAMES = 8
"""How many of a thread's innermost calls are told."""


def foreign_locks(
    purgatory: DelayedOperationPurgatory, now_ns: int, most: int
) -> list[dict[str, Any]]:
    """Tell which operations wait for their user's lock, the longest first.

    Args:
        now_ns: the time by the purgatory's timer.
        most: of how many at most.
    """
    waiting = sorted(purgatory.waiting_for_locks(), key=lambda one: one[1])
    found = []
    for operation, since_ns in waiting[:most]:
        lock = users_lock(operation)
        found.append(
            {
                "operation": cut_repr(operation),
                "lock": cut_repr(lock),
                "for_ms": max(0, now_ns - since_ns) / 1e6,
                "holder": _holder(lock),
            }
        )
    return found


def _holder(lock: object) -> dict[str, Any] | None:
    """Which thread holds a lock, and what that does; None where the lock can't tell."""
    # What Python's own locks have no attribute for stands in their repr.
    owner = re.search(r"\bowner=(\d+)\b", cut_repr(lock))
    if owner is None or owner[1] == "0":
        return None
    thread = int(owner[1])
    names = [one.name for one in threading.enumerate() if one.ident == thread]
    frame = sys._current_frames().get(thread)
    calls = traceback.extract_stack(frame)[-FRAMES:] if frame is not None else []
    return {
        "thread": names[0] if names else str(thread),
        "calls": [f"{call.name} ({call.filename}:{call.lineno})" for call in reversed(calls)],
    }
