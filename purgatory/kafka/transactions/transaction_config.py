"""What transactional ids are allowed, and how long their coordinator waits."""

from __future__ import annotations

from typing import NamedTuple


class TransactionConfig(NamedTuple):
    """What transactional ids are allowed. Times are in milliseconds.

    Args:
        max_timeout_ms: the longest timeout that a producer may ask for; Kafka's
            ``transaction.max.timeout.ms``.
        id_expiration_ms: a transactional id that isn't used for so long is forgotten; Kafka's
            ``transactional.id.expiration.ms``.
        marker_wait_ms: how long the answer to the end of a transaction waits for its markers.
            Then it is given without them: the end is decided, and they follow.
        retry_ms: when a marker that couldn't be written is tried again.
    """

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    marker_wait_ms: int = 5_000
    retry_ms: int = 50
