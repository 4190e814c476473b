"""The orders of the result tables, and the values and limits that these tables share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from purgatory.pipeline.result_rows import Order

ALL = "all"
"""The value of `kind` and `outcome` in rows over all kinds and over all outcomes."""

ALL_TOPICS = "*"
"""The value of `topic` in rows over all topics; Kafka allows no topic of that name."""

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed", "pending", ALL)
"""The outcomes that a trace knows, in the order in which they are shown."""

Exactness = Literal["exact", "approximate"]
"""The exactness of percentiles."""


def check_waits(window_us: int | None, percentiles: str) -> None:
    """Check the options of waits.

    Raises:
        ValueError: `window_us` is not positive, or `percentiles` is invalid.
    """
    if window_us is not None and window_us <= 0:
        raise ValueError(f"window_us must be a positive number of microseconds, not {window_us}")
    if percentiles not in get_args(Exactness):
        raise ValueError(f"percentiles must be 'exact' or 'approximate', not {percentiles!r}")


def check_number(number: int) -> None:
    """Raise ValueError for a number below 1."""
    if number < 1:
        raise ValueError(f"number must be at least 1, not {number}")


# The orders of the tables of waits and occupancy.


def by(*names: str) -> Order:
    """The order by some columns, by the value of each."""
    return tuple((name, None) for name in names)


WAITS_ORDER: Order = (
    *by("run_id", "window_start_us", "purgatory"),
    ("topic", (ALL_TOPICS,)),
    ("topic", None),
    ("kind", (ALL,)),
    ("kind", None),
    ("outcome", OUTCOMES),
    ("outcome", None),
)
"""The order by run, time, purgatory, topic, kind and outcome; rows over all of these come last."""

WAIT_ORDERS = {"waits": WAITS_ORDER, "slowest": by("run_id", "purgatory", "rank")}
"""The tables of the command `waits`, and the order of each."""

OCCUPANCY_ORDERS = {
    "occupancy": by("run_id", "purgatory", "broker", "bucket_start_us"),
    "peaks": by("run_id", "purgatory", "rank"),
    "hot_keys": by("run_id", "purgatory", "rank"),
    "key_occupancy": by("run_id", "purgatory", "key", "bucket_start_us"),
}
"""The tables of the command `occupancy`, and the order of each."""


# The tables that only an analysis has.


LATENCY_SPANS: Mapping[str, str] = {
    "record": "from its arrival at the producer until it was acknowledged",
    "attempt": "from send to answer, or to the break of the connection",
    "network": "of an answered attempt: there and back",
    "queue": "of an answered attempt: behind others of its connection",
    "wait": "of an answered attempt: from when the broker took it up until it answered",
    "broken": "of an attempt without an answer: until the connection broke",
}
"""The spans of `latencies`, in the order of display: an attempt before its parts."""

MOST_KEYS = 40
"""The most keys of a run in `expiry`: those with the most expired operations."""


ATTEMPTS_ORDER: Order = (
    ("run_id", None),
    ("group", None),
    ("outcome", ("all", "ok", "fail", "unknown")),
    ("error", None),
)

LATENCIES_ORDER: Order = (("run_id", None), ("group", None), ("span", tuple(LATENCY_SPANS)))

DISTRIBUTION_ORDER: Order = (
    ("run_id", None),
    ("purgatory", None),
    ("outcome", None),
    ("low_us", None),
)

PRODUCER, CONSUMER = "producer", "consumer"
"""The kinds of clients in `throughput`."""

THROUGHPUT_ORDER: Order = by("run_id", "window_start_us", "kind", "group", "topic", "partition")

EXPIRY_ORDER: Order = (("run_id", None), ("purgatory", None), ("broker", None), ("watch_key", None))
