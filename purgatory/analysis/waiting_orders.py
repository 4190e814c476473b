"""The orders of the tables of waits and occupancy, whichever engine writes them."""

from __future__ import annotations

from purgatory.analysis.analysis_words import EXPIRY_ORDER
from purgatory.analysis.row_order import Order
from purgatory.analysis.waiting_words import ALL, ALL_TOPICS, OUTCOMES


def _by(*names: str) -> Order:
    return tuple((name, None) for name in names)


WAITS_ORDER: Order = (
    *_by("run_id", "window_start_us", "purgatory"),
    ("topic", (ALL_TOPICS,)),
    ("topic", None),
    ("kind", (ALL,)),
    ("kind", None),
    ("outcome", OUTCOMES),
    ("outcome", None),
)
"""By run, time, purgatory, topic, kind and outcome; rows over all of something come last."""

WAIT_ORDERS = {"waits": WAITS_ORDER, "slowest": _by("run_id", "purgatory", "rank")}
"""The tables of the command `waits`, and the order of each."""


def wait_orders(*, with_expiry: bool) -> dict[str, Order]:
    """Return the same, with the table that only a page needs where there is to be one."""
    return WAIT_ORDERS | ({"expiry": EXPIRY_ORDER} if with_expiry else {})


OCCUPANCY_ORDERS = {
    "occupancy": _by("run_id", "purgatory", "broker", "bucket_start_us"),
    "littles_law": _by("run_id", "purgatory", "broker"),
    "peaks": _by("run_id", "purgatory", "rank"),
    "hot_keys": _by("run_id", "purgatory", "rank"),
    "key_occupancy": _by("run_id", "purgatory", "key", "bucket_start_us"),
}
"""The tables of the command `occupancy`, and the order of each."""
