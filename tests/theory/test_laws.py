"""The closed forms against brute force that shares no code with them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.theory.laws import (
    Moments,
    cycle_wait_ms,
    exponential_queue_ms,
    log_normal_moments,
    number_present,
    queue_ms,
    slower_of_two_cycles_ms,
    slower_of_two_ms,
)

MOST = 400
DRAWS = 2_000_000
P50, P75 = 4.0, 6.0


def mean_left_behind(rate: float, services: list[float]) -> float:
    """The mean number that a served one leaves behind in M/G/1, from the chain of these numbers.

    Args:
        rate: of arrivals.
        services: how long one is served; each with the same chance.
    """
    arrivals = np.zeros(MOST)
    for service in services:
        terms = [math.exp(-rate * service)]
        for number in range(1, MOST):
            terms.append(terms[-1] * rate * service / number)
        arrivals += np.array(terms) / len(services)
    step = np.zeros((MOST, MOST))
    for left in range(MOST):
        start = max(0, left - 1)
        step[left, start:] = arrivals[: MOST - start]
    step[:, -1] += 1 - step.sum(axis=1)
    # Stationary: shares times step is shares, and the shares are a whole.
    equations = np.vstack([step.T - np.eye(MOST), np.ones(MOST)])
    shares = np.linalg.lstsq(equations, np.append(np.zeros(MOST), 1.0), rcond=None)[0]
    return float(shares @ np.arange(MOST))


@pytest.mark.parametrize("services", [[2.0], [1.0, 3.0], [0.5, 0.5, 5.0]])
@pytest.mark.parametrize("rate", [0.05, 0.25, 0.4])
def test_queue_formula_matches_the_embedded_markov_chain(
    rate: float, services: list[float]
) -> None:
    moments = Moments(float(np.mean(services)), float(np.mean(np.square(services))))
    time = mean_left_behind(rate, services) / rate
    assert queue_ms(rate, moments) + moments.mean == pytest.approx(time, rel=1e-6)


@pytest.mark.parametrize("rate", [0.05, 0.25, 0.4])
def test_exponential_queue_matches_the_birth_death_process(rate: float) -> None:
    flows = np.diag(np.full(MOST - 1, rate), 1) + np.diag(np.full(MOST - 1, 0.5), -1)
    flows -= np.diag(flows.sum(axis=1))
    equations = np.vstack([flows.T, np.ones(MOST)])
    shares = np.linalg.lstsq(equations, np.append(np.zeros(MOST), 1.0), rcond=None)[0]
    present = float(shares @ np.arange(MOST))
    assert exponential_queue_ms(rate, 2.0) == pytest.approx(present / rate - 2.0, rel=1e-6)
    assert number_present(rate, exponential_queue_ms(rate, 2.0) + 2.0) == pytest.approx(present)
    assert queue_ms(rate, Moments(2.0, 8.0)) == pytest.approx(exponential_queue_ms(rate, 2.0))


@pytest.mark.parametrize("rate", [0.5, 0.6, math.nan])
def test_utilisation_of_1_or_more_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="the queue never settles"):
        queue_ms(rate, Moments(2.0, 4.0))
    with pytest.raises(ValueError, match="the queue never settles"):
        exponential_queue_ms(rate, 2.0)


def drawn_lags(seed: int, count: int = DRAWS) -> Any:
    """Log-normal lags, by their median and 75th percentile."""
    sigma = math.log(P75 / P50) / 0.6744897501960817
    return np.random.default_rng(seed).lognormal(math.log(P50), sigma, count)


def test_log_normal_moments_match_samples() -> None:
    lags = drawn_lags(1)
    moments = log_normal_moments(P50, P75)
    assert np.quantile(lags, 0.75) == pytest.approx(P75, rel=0.005)
    assert moments.mean == pytest.approx(np.mean(lags), rel=0.005)
    assert moments.mean_square == pytest.approx(np.mean(lags**2), rel=0.005)
    longer = moments.plus(3.0)
    assert longer.mean_square == pytest.approx(np.mean((lags + 3.0) ** 2), rel=0.005)
    assert log_normal_moments(2.0, 2.0) == (2.0, 4.0)


def waits(seed: int, constant: float, moments: Any) -> Any:
    """The waits for a follower of records that come at given moments: for the fetch after the
    one that takes them."""
    fetches = np.cumsum(drawn_lags(seed) + constant)
    return fetches[np.searchsorted(fetches, moments) + 1] - moments


@pytest.mark.parametrize("constant", [0.5, 10.5, 40.5])
def test_cycle_waits_match_simulated_fetches(constant: float) -> None:
    last = 0.99 * DRAWS * (constant + P50)
    moments = np.random.default_rng(2).uniform(1_000, last, DRAWS)
    first, second = waits(3, constant, moments), waits(4, constant, moments)
    cycle = log_normal_moments(P50, P75).plus(constant)
    assert cycle_wait_ms(cycle) == pytest.approx(np.mean(first), rel=0.002)
    slower = slower_of_two_cycles_ms(constant, P50, P75)
    assert slower == pytest.approx(np.mean(np.maximum(first, second)), rel=0.002)


def test_slower_of_two_constant_cycles_adds_two_thirds_of_a_cycle() -> None:
    """Both are somewhere in a cycle of 10 ms: the later one after two thirds of it, on average."""
    assert slower_of_two_cycles_ms(9.0, 1.0, 1.0 + 1e-9) == pytest.approx(10 + 20 / 3, rel=1e-4)


@pytest.mark.parametrize("p75", [4.0, 4.5, 6.0, 12.0])
def test_slower_of_two_matches_all_pairs_of_quantiles(p75: float) -> None:
    sigma = math.log(p75 / P50) / 0.6744897501960817
    z = np.linspace(-9, 9, 2_001)
    share = np.exp(-z * z / 2)
    share /= share.sum()
    lags = P50 * np.exp(sigma * z)
    brute = float(share @ np.maximum.outer(lags, lags) @ share)
    assert slower_of_two_ms(P50, p75) == pytest.approx(brute, rel=1e-4)
