"""Delays of faults: fixed, or drawn from a distribution."""

from __future__ import annotations

import math
from dataclasses import field
from random import Random
from statistics import NormalDist
from typing import Literal, get_args

from purgatory.kafka.errors import ClusterError
from purgatory.settings.typed_duration import OrTimedelta, default, timed_dataclass

Distribution = Literal["fixed", "uniform", "exponential", "lognormal"]
"""Distributions of delays."""

_Z75 = NormalDist().inv_cdf(0.75)


@timed_dataclass
class DelayDistribution:
    """A delay of ``by_ms``, or by chance.

    ``distribution``: "fixed"; "uniform", from ``by_ms`` to ``to_ms``; "exponential", with the mean
    ``by_ms``; "lognormal", with the median ``by_ms`` and the 75th percentile ``p75_ms``.
    """

    by_ms: OrTimedelta[float] = field(kw_only=True)
    distribution: Distribution = field(default="fixed", kw_only=True)
    to_ms: OrTimedelta[float | None] = field(default=default(None), kw_only=True)
    p75_ms: OrTimedelta[float | None] = field(default=default(None), kw_only=True)

    def check_delays(self) -> None:
        """Check that the arguments match the distribution.

        Raises:
            ClusterError: something is missing, too much, or out of order.
        """
        if self.distribution not in get_args(Distribution):
            known = ", ".join(get_args(Distribution))
            raise ClusterError(f"distribution={self.distribution!r}: one of {known}")
        self._check_end("to_ms", "uniform", self.to_ms)
        self._check_end("p75_ms", "lognormal", self.p75_ms)

    def _check_end(self, name: str, distribution: Distribution, value: float | None) -> None:
        """Check an argument that one distribution takes, and no other."""
        if value is None and self.distribution == distribution:
            raise ClusterError(f"distribution={distribution!r}: it takes {name}, by_ms or more")
        if value is not None and self.distribution != distribution:
            raise ClusterError(f"{name}={value!r}: that is for distribution={distribution!r}")
        if value is not None and value < self.by_ms:
            raise ClusterError(f"{name}={value!r}: by_ms={self.by_ms!r} or more")

    def draw_ms(self, random: Random) -> float:
        """Return a delay, to the microsecond."""
        delay_ms = self.by_ms
        if self.to_ms is not None:
            delay_ms = random.uniform(self.by_ms, self.to_ms)
        elif self.p75_ms is not None and self.by_ms:
            sigma = math.log(self.p75_ms / self.by_ms) / _Z75
            delay_ms = random.lognormvariate(math.log(self.by_ms), sigma)
        elif self.distribution == "exponential" and self.by_ms:
            delay_ms = random.expovariate(1 / self.by_ms)
        # The last bits of logarithms differ between machines; a simulation's run must not.
        return round(delay_ms, 3)
