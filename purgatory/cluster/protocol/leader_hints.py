"""What a client is told that came to the wrong broker, or with an old epoch: who leads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

Key = tuple[str | UUID, int]
"""A partition as its client names it: the topic's name, or its id, and the number."""


class NodeEndpoint(NamedTuple):
    """Where a broker is."""

    node_id: int
    host: str
    port: int
    rack: str | None


class LeaderHints(NamedTuple):
    """The leaders of the partitions with such an error, with their epochs, and where they are."""

    leaders: Mapping[Key, tuple[int, int]]
    endpoints: tuple[NodeEndpoint, ...]


NO_HINTS = LeaderHints({}, ())
