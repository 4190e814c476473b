"""Scenarios that meet the assumptions of a law, and estimates of its quantity from a run.

Each scenario is a text as a user would write it. `docs/theory.md` gives the reason for each
setting. All scenarios share two: no request times out (all limits are 10^9 ms), so the tick of
the timing wheel plays no part, and the network takes the same time for each message.

A run keeps its rows of sends as they come (`Simulation`'s ``publisher``). Sends that began before
`WARM_UP_MS` are excluded: the cluster starts empty, and the laws are of the steady state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from purgatory.simulation import LoadedScenario, Simulation, load_scenario, parse_scenario
from purgatory.trace.table_rows import SendRow
from tests.theory.laws import (
    cycle_wait_ms,
    exponential_queue_ms,
    log_normal_moments,
    number_present,
    queue_ms,
    slower_of_two_cycles_ms,
    slower_of_two_ms,
)

WARM_UP_MS = 1_000
_US_PER_MS = 1_000
_LOOK_EVERY_US = 10_000

NETWORK_MS = 0.25
CONSTANT_LAG_MS = 1.5
SERVICE_MS = 2 * NETWORK_MS + CONSTANT_LAG_MS
"""A request's time at a connection: the record's way to the follower, its append there, and
the way of the fetch that tells the leader."""
SPREAD_LAG_MS = (1.252, 1.878)
"""Median and 75th percentile of a log-normal lag whose mean is 1.5 ms, too."""
LAG_MS = (4.0, 6.0)
"""The same of the followers whose cycles are looked at."""

_UTILISATIONS = (0.3, 0.5, 0.7, 0.8)
_INTERVALS_MS = (0.0, 5.0, 10.0, 20.0, 40.0)


class _KeptSends:
    """Keeps the rows of sends, and no others."""

    def __init__(self) -> None:
        self.rows: list[SendRow] = []
        self.send: Callable[[SendRow], None] = self.rows.append

    def _no_send(self, row: object) -> None:
        """Drop a row."""

    operation = read = commit = transaction = _no_send


@dataclass(frozen=True)
class KeptRun:
    """A run that is over: its rows of sends, its summary, and when the arrivals ended."""

    sends: list[SendRow]
    summary: dict[str, Any]
    duration_ms: int


Estimate = Callable[[KeptRun], float]
"""Makes one number of a run."""


def run(loaded: LoadedScenario) -> KeptRun:
    """Run a scenario. Some hundred bytes of memory for each attempt to send a record."""
    kept = _KeptSends()
    simulation = Simulation(loaded, publisher=kept)
    return KeptRun(kept.rows, simulation.run(), simulation.duration_ms)


def mean_ms(begin: str, end: str) -> Estimate:
    """The mean time between two moments of a send, which are columns, in milliseconds.

    The estimate raises a ValueError if no record arrived after the warm-up.
    """

    def estimate(kept: KeptRun) -> float:
        spans: list[int] = [
            getattr(row, end) - getattr(row, begin)
            for row in kept.sends
            if row.created_us is not None and row.created_us >= WARM_UP_MS * _US_PER_MS
        ]
        if not spans:
            raise ValueError(f"no record arrived after the first {WARM_UP_MS} ms")
        return sum(spans) / len(spans) / _US_PER_MS

    return estimate


def mean_present(begin: str, end: str) -> Estimate:
    """The number of sends between two moments of theirs, looked at each 10 ms after the warm-up."""

    def estimate(kept: KeptRun) -> float:
        begun = [getattr(row, begin) for row in kept.sends]
        ended = [getattr(row, end) for row in kept.sends]
        window = (WARM_UP_MS * _US_PER_MS, kept.duration_ms * _US_PER_MS)
        return _counted(begun, ended, *window, kept.summary["seed"])

    return estimate


def records_under_way(kept: KeptRun) -> float:
    """The number of records under way, looked at each 10 ms of the whole run: from their arrival
    until they are acknowledged."""
    ends: dict[tuple[int, int], tuple[int, int]] = {}
    for row in kept.sends:
        if row.outcome == "ok" and row.answer_us is not None and row.created_us is not None:
            ends.setdefault((row.producer, row.sequence), (row.created_us, row.answer_us))
    begun, ended = zip(*ends.values(), strict=True)
    end_us = kept.summary["virtual_ms"] * _US_PER_MS
    return _counted(begun, ended, 0, end_us, kept.summary["seed"])


def rate_and_time(kept: KeptRun) -> tuple[float, float]:
    """Of the whole run, by its summary: records acknowledged per ms, and their mean time in ms."""
    (group,) = kept.summary["producers"]
    records = group["latency_us"]["record"]
    return records["count"] / kept.summary["virtual_ms"], records["mean"] / _US_PER_MS


def _counted(
    begun: Iterable[int], ended: Iterable[int], start_us: int, end_us: int, seed: int
) -> float:
    """The mean of how many have begun and not ended, at one moment by chance in each 10 ms.

    At even moments it would be wrong by the same in all runs, where a fault comes at the same time.
    O(n log n).
    """
    begun, ended, chance = sorted(begun), sorted(ended), Random(seed).random
    count = max(1, (end_us - start_us) // _LOOK_EVERY_US)
    step_us = (end_us - start_us) / count
    moments = [start_us + (number + chance()) * step_us for number in range(count)]
    total = sum(bisect_right(begun, at_us) - bisect_right(ended, at_us) for at_us in moments)
    return total / count


@dataclass(frozen=True)
class Experiment:
    """A law, and scenarios that it is held against.

    Args:
        name: in tables and of files.
        title: what it is about, in words.
        panel: what the vertical axis has, of a plot that it may share with others; "" for none.
        axis: what is varied.
        values: which values of it are simulated.
        scenario: makes the scenario for a value.
        estimate: what is told of each run.
        law: what theory says for a value; None: `own_law` says it of each run.
        own_law: what theory says of a run by other figures of the same run.
    """

    name: str
    title: str
    panel: str
    axis: str
    values: tuple[float, ...]
    scenario: Callable[[float], LoadedScenario]
    estimate: Estimate
    law: Callable[[float], float] | None = None
    own_law: Estimate | None = None

    def expected(self, value: float, kept: KeptRun) -> float:
        """The value by theory, for this run."""
        if self.law is not None:
            return self.law(value)
        assert self.own_law is not None, "one of both is given"
        return self.own_law(kept)


def _parsed(
    name: str,
    value: float,
    brokers: int,
    duration_ms: int,
    sections: str,
    network_ms: float = NETWORK_MS,
) -> LoadedScenario:
    text = f"""
        name = "{name}-{value:g}"
        duration_ms = {duration_ms}
        [cluster]
        brokers = {brokers}
        replica_lag_time_max_ms = 1_000_000_000
        [topic]
        partitions = 1
        replication_factor = {brokers}
        min_insync_replicas = {brokers}
        [network]
        delay_ms = {network_ms}
        {sections}
        timeout_ms = 1_000_000_000
        delivery_timeout_ms = 1_000_000_000
    """
    return parse_scenario(text, name, Path())


def _behind_others(name: str, lag_ms: str) -> Callable[[float], LoadedScenario]:
    """One connection with Poisson arrivals, whose requests wait for a follower one by one."""

    def scenario(utilisation: float) -> LoadedScenario:
        sections = f"""
        [followers]
        lag_ms = {lag_ms}
        fetch_max_wait_ms = 1_000_000_000
        [[producers]]
        group = "orders"
        rate = {1_000 * utilisation / SERVICE_MS}
        max_in_flight = 1_000"""
        return _parsed(name, utilisation, 2, 20_000, sections)

    return scenario


def _one_at_a_time(utilisation: float) -> LoadedScenario:
    """One connection with one request in flight, whose answer takes an exponential time."""
    sections = f"""
        [[faults]]
        kind = "delay_responses"
        at_ms = 0
        by_ms = {SERVICE_MS}
        distribution = "exponential"
        [[producers]]
        group = "orders"
        rate = {1_000 * utilisation / SERVICE_MS}
        acks = 1
        max_in_flight = 1"""
    return _parsed("exponential-queue", utilisation, 1, 20_000, sections, network_ms=0)


def _in_cycles(name: str, brokers: int) -> Callable[[float], LoadedScenario]:
    """Followers that fetch in cycles, whether or not there is anything, and many connections."""

    def scenario(interval_ms: float) -> LoadedScenario:
        p50, p75 = LAG_MS
        sections = f"""
        [followers]
        lag_ms = {{ p50 = {p50}, p75 = {p75} }}
        fetch_interval_ms = {interval_ms}
        fetch_max_wait_ms = 0
        [[producers]]
        group = "orders"
        count = 4_000
        rate = 0.025"""
        return _parsed(name, interval_ms, brokers, 30_000, sections)

    return scenario


def _with_two_at_hand(p75_ms: float) -> LoadedScenario:
    """Two followers that wait at the leader when a record comes."""
    sections = f"""
        [followers]
        lag_ms = {{ p50 = {LAG_MS[0]}, p75 = {p75_ms} }}
        fetch_max_wait_ms = 1_000_000_000
        [[producers]]
        group = "orders"
        rate = 20.0
        spacing = "even\""""
    return _parsed("slower-of-two", p75_ms, 3, 120_000, sections)


def _rate(utilisation: float) -> float:
    return utilisation / SERVICE_MS


def _constant_queue(utilisation: float) -> float:
    return queue_ms(_rate(utilisation), log_normal_moments(SERVICE_MS, SERVICE_MS))


_QUEUE = "mean time in the queue of a connection, ms"
_UTILISATION = "utilisation of the connection"
_CYCLE = "mean wait of a produce, ms"
_INTERVAL = "followers.fetch_interval_ms"
_AT_HAND = "mean wait of a produce, both followers at hand, ms"
_PRESENT = "mean number of requests at the connection"

EXPERIMENTS = (
    Experiment(
        "constant-queue",
        "M/D/1: a constant service",
        _QUEUE,
        _UTILISATION,
        _UTILISATIONS,
        _behind_others("constant-queue", f"{CONSTANT_LAG_MS}"),
        mean_ms("arrived_us", "served_us"),
        _constant_queue,
    ),
    Experiment(
        "log-normal-queue",
        "M/G/1: a log-normal service",
        _QUEUE,
        _UTILISATION,
        _UTILISATIONS,
        _behind_others("log-normal-queue", "{{ p50 = {}, p75 = {} }}".format(*SPREAD_LAG_MS)),
        mean_ms("arrived_us", "served_us"),
        lambda utilisation: queue_ms(
            _rate(utilisation), log_normal_moments(*SPREAD_LAG_MS).plus(2 * NETWORK_MS)
        ),
    ),
    Experiment(
        "exponential-queue",
        "M/M/1: an exponential service",
        _QUEUE,
        _UTILISATION,
        _UTILISATIONS,
        _one_at_a_time,
        mean_ms("created_us", "send_us"),
        lambda utilisation: exponential_queue_ms(_rate(utilisation), SERVICE_MS),
    ),
    Experiment(
        "fetch-cycle",
        "one follower that fetches in cycles",
        _CYCLE,
        _INTERVAL,
        _INTERVALS_MS,
        _in_cycles("fetch-cycle", 2),
        mean_ms("served_us", "settled_us"),
        lambda interval_ms: cycle_wait_ms(
            log_normal_moments(*LAG_MS).plus(2 * NETWORK_MS + interval_ms)
        ),
    ),
    Experiment(
        "two-fetch-cycles",
        "the slower of two",
        _CYCLE,
        _INTERVAL,
        _INTERVALS_MS,
        _in_cycles("two-fetch-cycles", 3),
        mean_ms("served_us", "settled_us"),
        lambda interval_ms: slower_of_two_cycles_ms(2 * NETWORK_MS + interval_ms, *LAG_MS),
    ),
    Experiment(
        "slower-of-two",
        "the slower of two",
        _AT_HAND,
        "75th percentile of followers.lag_ms, of which the median is 4",
        (4.5, 5.0, 5.5, 6.0),
        _with_two_at_hand,
        mean_ms("served_us", "settled_us"),
        lambda p75_ms: 2 * NETWORK_MS + slower_of_two_ms(LAG_MS[0], p75_ms),
    ),
    Experiment(
        "little-constant-queue",
        "Little: rate times time, with the time of M/D/1",
        _PRESENT,
        _UTILISATION,
        (0.3, 0.5, 0.8),
        _behind_others("little-constant-queue", f"{CONSTANT_LAG_MS}"),
        mean_present("arrived_us", "settled_us"),
        lambda utilisation: number_present(
            _rate(utilisation), _constant_queue(utilisation) + SERVICE_MS
        ),
    ),
    Experiment(
        "little-slow-follower",
        "Little: rate times time, with the time of the run itself",
        "",
        "records of slow-follower that are under way",
        (1.0,),
        lambda _: load_scenario("slow-follower"),
        records_under_way,
        own_law=lambda kept: number_present(*rate_and_time(kept)),
    ),
)
"""All comparisons, in the order of `docs/theory.md`."""
