"""Closed forms for how long requests wait: pure functions, which know nothing of the simulation.

All times are in milliseconds, all rates per millisecond. `docs/theory.md` has the derivations.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

_NORMAL = NormalDist()
_Z75 = _NORMAL.inv_cdf(0.75)
_FARTHEST = 5.0
"""Beyond so many standard deviations a log-normal time is left out of an integral."""
_STEPS = 400


class Moments(NamedTuple):
    """The mean of a time, and the mean of its square."""

    mean: float
    mean_square: float

    def plus(self, constant: float) -> Moments:
        """Of the time and a constant one. O(1)."""
        square = self.mean_square + 2 * constant * self.mean + constant**2
        return Moments(self.mean + constant, square)


def log_normal_moments(p50: float, p75: float) -> Moments:
    """Of a log-normal time, by its median and its 75th percentile.

    With s = ln(p75 / p50) / 0.6745: E[X] = p50·exp(s²/2), E[X²] = p50²·exp(2·s²).
    """
    variance = _sigma(p50, p75) ** 2
    return Moments(p50 * math.exp(variance / 2), p50**2 * math.exp(2 * variance))


def queue_ms(rate: float, service: Moments) -> float:
    """The mean time in the queue of M/G/1: the formula of Pollaczek (1930) and Khinchine (1932).

    W = λ·E[S²] / (2·(1 - u)), where u = λ·E[S] is the utilisation. See Kleinrock, Queueing Systems
    1 (1975), 5.7. With a constant service D it is M/D/1: W = u·D / (2·(1 - u)).

    Args:
        rate: of the Poisson arrivals.
        service: how long one is served.

    Raises:
        ValueError: the utilisation is not below 1.
    """
    return rate * service.mean_square / (2 * (1 - _utilisation(rate, service.mean)))


def exponential_queue_ms(rate: float, service: float) -> float:
    """The mean time in the queue of M/M/1: W = u·s / (1 - u).

    Here u = λ·s is the utilisation. Kleinrock, Queueing Systems 1 (1975), 3.2: of his time in the
    system, s / (1 - u), the part before the service.

    Args:
        rate: of the Poisson arrivals.
        service: its mean s.

    Raises:
        ValueError: the utilisation is not below 1.
    """
    share = _utilisation(rate, service)
    return share * service / (1 - share)


def number_present(rate: float, time: float) -> float:
    """The mean number of requests, L = λ·W: Little, Operations Research 9 (1961).

    Args:
        rate: at which they come.
        time: how long each stays, on average.
    """
    return rate * time


def cycle_wait_ms(cycle: Moments) -> float:
    """The mean wait for a follower that fetches in cycles: E[C] + E[C²] / (2·E[C]).

    A record that comes at a random moment waits for the rest of the cycle then under way, which on
    average is E[C²] / (2·E[C]) (the paradox of inspection: Feller 2 (1971), XI.4; Cox, Renewal
    Theory (1962), 5): the next fetch takes it. And a whole cycle more: the fetch after that tells
    the leader.

    Args:
        cycle: the time from fetch to fetch.
    """
    return cycle.mean + cycle.mean_square / (2 * cycle.mean)


def slower_of_two_ms(p50: float, p75: float) -> float:
    """The mean of the larger of two independent log-normal times alike: 2·E[X]·Φ(s / √2).

    E[max] = 2·∫ x·f(x)·F(x) dx (order statistics: David and Nagaraja (2003), 2.1), and x·f(x) is
    E[X] times the density of a log-normal time whose logarithm has the mean
    ln p50 + s² instead of ln p50; s is that of `log_normal_moments`.
    """
    sigma = _sigma(p50, p75)
    return 2 * log_normal_moments(p50, p75).mean * _NORMAL.cdf(sigma / math.sqrt(2))


def slower_of_two_cycles_ms(constant: float, p50: float, p75: float) -> float:
    """The mean wait for the slower of two followers that fetch in independent cycles.

    E[max] = ∫ (1 - G(t)²) dt, where G is the distribution of one follower's wait R + C: R has the
    density (1 - F(x)) / E[C], F being that of the cycle. R's distribution is in closed form; the
    sum and the integral are computed, to 1e-4 of the result.

    Args:
        constant: the part of a cycle that is the same each time.
        p50: the median of the other part, which is log-normal; below p75.
        p75: its 75th percentile.

    O(80,000).
    """
    mu, sigma = math.log(p50), _sigma(p50, p75)
    mean_lag = math.exp(mu + sigma**2 / 2)
    mean = constant + mean_lag

    def rest_within(x: float) -> float:
        """The share of the rests of cycles up to x: (x·(1 - F(x)) + E[C; C <= x]) / E[C]."""
        if x <= constant:
            return max(0.0, x) / mean
        z = (math.log(x - constant) - mu) / sigma
        below = _NORMAL.cdf(z)
        partial = constant * below + mean_lag * _NORMAL.cdf(z - sigma)
        return (x * (1 - below) + partial) / mean

    width = 4 * _FARTHEST / _STEPS
    places = [number * width - _FARTHEST for number in range(_STEPS // 2 + 1)]
    lags = [(_NORMAL.pdf(z) * width, math.exp(mu + sigma * z)) for z in places]

    def longer(t: float) -> float:
        within = math.fsum(share * rest_within(t - constant - lag) for share, lag in lags)
        return 1 - within**2

    longest = 2 * (constant + math.exp(mu + _FARTHEST * sigma))
    step = longest / _STEPS
    inner = math.fsum(longer(number * step) for number in range(1, _STEPS))
    return step * (0.5 * (longer(0) + longer(longest)) + inner)


def _sigma(p50: float, p75: float) -> float:
    return math.log(p75 / p50) / _Z75


def _utilisation(rate: float, service: float) -> float:
    share = rate * service
    if not share < 1:
        raise ValueError(f"the server is asked for {share:g} of its time: the queue never settles")
    return share
