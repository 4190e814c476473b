"""The features that meet in a cluster: the dimensions of the rows, and what can't be combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tests.world.pairwise import Row

DIMENSIONS: Final[Mapping[str, Sequence[str]]] = {
    "group": ("none", "classic", "static", "consumer", "share", "streams"),
    "client": ("old", "newest", "aiokafka"),
    "producer": ("plain", "idempotent", "transactional"),
    "fault": (
        "none",
        "kill-coordinator",
        "kill-leader",
        "pause",
        "cut-link",
        "clock-jump",
        "disk-full",
        "power-cut",
    ),
    "storage": ("memory", "disk"),
    "topic": ("unchanged", "made-anew", "partitions-added", "config-changed", "compacted"),
    "security": ("none", "sasl", "tls", "acls"),
    "membership": ("none", "join", "leave", "crash", "return", "silence"),
    "quota": ("none", "bytes"),
}
"""The values of each dimension; the first is the plainest.

``client``: the oldest or the newest version of each request that can express the row, by a client
of this project; or a real client. ``sasl``: PLAIN, of aiokafka SCRAM-SHA-256. ``acls``: as ``sasl``
with entries for the row's needs alone. ``return``: a member goes without a farewell, and comes back
at once. ``silence``: a member pauses beyond its session, and goes on. ``bytes``: quotas of the
rates of producers and consumers, below what they would send and read.
"""


class Exclusion(NamedTuple):
    """Values that can't be combined: a value is one of those listed for each dimension."""

    reason: str
    values: Mapping[str, Sequence[str]]


EXCLUSIONS: Final = (
    Exclusion(
        "aiokafka speaks neither the consumer protocol nor those of share and streams groups",
        {"client": ["aiokafka"], "group": ["consumer", "share", "streams"]},
    ),
    Exclusion(
        "without a disk, none fills up or loses unforced writes",
        {"storage": ["memory"], "fault": ["disk-full", "power-cut"]},
    ),
    Exclusion(
        "without a group there are no members",
        {"group": ["none"], "membership": ["join", "leave", "crash", "return", "silence"]},
    ),
    Exclusion(
        "without a group or a transaction nothing has a coordinator",
        {"group": ["none"], "producer": ["plain", "idempotent"], "fault": ["kill-coordinator"]},
    ),
)
"""All combinations that can't be, with their reasons."""


def excluded(row: Row) -> str | None:
    """Return why a row can't be; None: it can. Dimensions may be missing."""
    for exclusion in EXCLUSIONS:
        if all(row.get(name) in values for name, values in exclusion.values.items()):
            return exclusion.reason
    return None


def row_id(row: Row) -> str:
    """Return the name of a row: its values, in the order of the dimensions."""
    return "/".join(row[name] for name in DIMENSIONS)


def parse_row(name: str) -> Row:
    """Return the row of a name.

    Raises:
        ValueError: the name has another number of values, or an unknown one.
    """
    row = dict(zip(DIMENSIONS, name.split("/"), strict=True))
    for dimension, value in row.items():
        if value not in DIMENSIONS[dimension]:
            raise ValueError(f"{dimension} {value!r}: it is {', '.join(DIMENSIONS[dimension])}")
    return row
