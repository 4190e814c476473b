"""What the tables that only a whole analysis has say, and their orders, whichever the engine."""

from __future__ import annotations

from collections.abc import Mapping

from purgatory.analysis.row_order import Order

SPANS: Mapping[str, str] = {
    "record": "from its arrival at the producer until it was acknowledged",
    "attempt": "from send to answer, or to the break of the connection",
    "network": "of an answered attempt: there and back",
    "queue": "of an answered attempt: behind others of its connection",
    "wait": "of an answered attempt: from when the broker took it up until it answered",
    "broken": "of an attempt without an answer: until the connection broke",
}
"""What `latencies` times, in the order in which it is shown: an attempt before its parts."""

MOST_KEYS = 40
"""How many keys of a run `expiry` has at most: those with the most expired operations."""


def check_keys(most_keys: int) -> None:
    """Refuse to keep fewer keys than none.

    Raises:
        ValueError: a number below 0.
    """
    if most_keys < 0:
        raise ValueError(f"most_keys must be at least 0, and is {most_keys}")


ATTEMPTS_ORDER: Order = (
    ("run_id", None),
    ("group", None),
    ("outcome", ("all", "ok", "fail", "unknown")),
    ("error", None),
)

LATENCIES_ORDER: Order = (("run_id", None), ("group", None), ("span", tuple(SPANS)))

DISTRIBUTION_ORDER: Order = (
    ("run_id", None),
    ("purgatory", None),
    ("outcome", None),
    ("low_us", None),
)

EXPIRY_ORDER: Order = (("run_id", None), ("purgatory", None), ("broker", None), ("watch_key", None))
