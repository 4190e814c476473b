"""Who a producer is: its id, and the epoch that tells it from those that had the id before."""

from __future__ import annotations

from typing import NamedTuple


class ProducerIdentity(NamedTuple):
    """A producer's id and its epoch: of two with one id, the one with the lower epoch is fenced."""

    producer_id: int
    producer_epoch: int
