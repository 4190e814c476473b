"""Random faults, of every kind that a scenario can have, as tables of a scenario."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from purgatory.simulation.scenario import FAULT_KINDS

Table = dict[str, object]

_WEIGHTS = {"stall_follower": 3, "cut_link": 3, "kill": 3, "pause": 2}
"""Higher weights for the kinds of faults after which replicas differ; of others, 1."""


def random_fault(random: Random, brokers: int, at_ms: int, longest_ms: int = 1_000) -> Table:
    """Return a fault that ends by itself.

    Args:
        random: the generator.
        brokers: the number of brokers.
        at_ms: when it begins.
        longest_ms: how long it lasts at most.
    """
    (kind,) = random.choices(list(FAULT_KINDS), [_WEIGHTS.get(one, 1) for one in FAULT_KINDS])
    table: Table = {"kind": kind, "at_ms": at_ms, **_ARGUMENTS[kind](random, brokers)}
    if kind != "cut_connections":
        table["duration_ms"] = random.randint(min(50, longest_ms), longest_ms)
    return table


def _one_broker(random: Random, brokers: int) -> Table:
    return {"broker": random.randrange(brokers)}


def _link(random: Random, brokers: int) -> Table:
    a, b = random.sample(range(brokers), 2)
    return {"a": a, "b": b}


def _messages(random: Random, brokers: int) -> Table:
    table: Table = {"count": random.randint(1, 20), "share": random.choice([0.1, 0.5, 1.0])}
    if random.random() < 0.5:
        table["broker"] = random.randrange(brokers)
    if random.random() < 0.5:
        table["api"] = random.choice(["produce", "fetch"])
    return table


_ARGUMENTS: dict[str, Callable[[Random, int], Table]] = {
    "stall_follower": _one_broker,
    "slow_follower": lambda r, n: {**_one_broker(r, n), "lag_ms": r.choice([5.0, 200.0])},
    "shrink_isr": lambda r, n: {**_one_broker(r, n), "topic": "events", "partition": 0},
    "kill": _one_broker,
    "pause": _one_broker,
    "cut_link": _link,
    "lose_responses": lambda r, n: {**_messages(r, n), "cut": r.random() < 0.5},
    "delay_responses": lambda r, n: {**_messages(r, n), "by_ms": r.choice([1.0, 50.0, 500.0])},
    "duplicate_responses": _messages,
    "refuse_produces": lambda r, n: {**_one_broker(r, n), "count": r.randint(1, 20)},
    "cut_connections": lambda r, n: r.choice([{}, _one_broker(r, n)]),
    "lose_requests": _messages,
}
