"""What waits in a purgatory: the oldest operations, and the keys that most of them wait on.

Of many operations only those that came first and those that came last are looked at. A key on which
a good part of all waits is among theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any

from purgatory.core.operation import DelayedOperation, submitted_ns, watch_keys
from purgatory.core.purgatory import DelayedOperationPurgatory
from purgatory.core.recent_errors import cut_repr
from purgatory.core.timeouts import FOREVER_MS

LOOKED_AT = 1_000
"""How many of the first operations are looked at, and how many of the last."""
KEYS_OF_ONE = 20
"""How many keys of an operation are looked at."""
COUNTED = 10_000
"""How far those are counted who wait on a key."""


def looked_at(purgatory: DelayedOperationPurgatory) -> list[DelayedOperation]:
    """Return the first and the last that wait, in the order in which they came. O(LOOKED_AT)."""
    first, last = purgatory.pending_ends(LOOKED_AT)
    return first + last


def oldest(parked: Sequence[DelayedOperation], now_ns: int, most: int) -> list[dict[str, Any]]:
    """Tell of those that came first. O(most).

    Args:
        parked: in the order in which they came.
        now_ns: the time by their timer's clock.
        most: of how many at most.
    """
    return [_told(operation, now_ns) for operation in parked[:most]]


def _told(operation: DelayedOperation, now_ns: int) -> dict[str, Any]:
    age_ms = max(0, now_ns - submitted_ns(operation)) / 1e6
    keys = watch_keys(operation)
    delay_ms: object = operation.delay_ms  # which a user may have changed to anything since
    left_ms = None
    if isinstance(delay_ms, int) and delay_ms < FOREVER_MS:
        left_ms = delay_ms - age_ms
    return {
        "operation": cut_repr(operation),
        "age_ms": age_ms,
        "expires_in_ms": left_ms,
        "keys": [cut_repr(key) for key in keys[:KEYS_OF_ONE]],
        "more_keys": max(0, len(keys) - KEYS_OF_ONE),
    }


def hottest_keys(
    purgatory: DelayedOperationPurgatory, parked: Sequence[DelayedOperation], most: int
) -> list[dict[str, Any]]:
    """Tell on which keys of these operations most wait. O(LOOKED_AT + most * COUNTED).

    A key that can't be hashed or compared any more is passed over.

    Args:
        most: of how many keys at most.
    """
    met: Counter[Hashable] = Counter()
    for operation in parked:
        with suppress(Exception):
            met.update(watch_keys(operation)[:KEYS_OF_ONE])
    found = []
    for key, times in met.most_common(most):
        with suppress(Exception):
            found.append((purgatory.waiting_on(key, COUNTED), times, key))
    found.sort(key=lambda one: one[:2], reverse=True)
    return [
        {"key": cut_repr(key), "waiting": waiting, "or_more": waiting == COUNTED}
        for waiting, _, key in found
        if waiting
    ]
