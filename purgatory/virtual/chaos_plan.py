"""What goes wrong in a world at random: a plan that the seed draws before it begins.

The plan is drawn at once, so that a run with some of its faults left out has the others as they
were: that is how a failure is made smaller.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from purgatory.settings.problems import known_names
from purgatory.virtual.chaos_kinds import ChaosKinds, Drawn
from purgatory.virtual.errors import WorldError
from purgatory.virtual.virtual_network import VirtualNetwork
from purgatory.virtual.world_cluster import WorldCluster


class ChaosPlan:
    """Draws faults for a cluster and the network to it.

    Args:
        chance: decides all.
        cluster: in which things go wrong.
        network: between it and its clients.
        longest_s: how long a fault lasts at most.
    """

    def __init__(
        self,
        chance: random.Random,
        cluster: WorldCluster,
        network: VirtualNetwork,
        longest_s: float,
    ) -> None:
        self._chance = chance
        self._brokers = list(cluster.brokers)
        self._longest_s = longest_s
        self._kinds = ChaosKinds(chance, cluster, network)

    def draw(self, count: int, kinds: Iterable[str] | None) -> Sequence[Drawn]:
        """Return so many faults.

        Raises:
            WorldError: one of the kinds is none, or there are none.
        """
        usual, named = self._kinds.usual, self._kinds.named
        chosen = list(usual) if kinds is None else list(kinds)
        known = {**usual, **named}
        if unknown := [one for one in chosen if one not in known]:
            raise WorldError(f"kinds: there is no {unknown[0]!r}; {known_names(unknown[0], known)}")
        if not chosen:
            raise WorldError("kinds: at least one is needed")
        return [
            known[self._chance.choice(chosen)](
                self._chance.choice(self._brokers),
                self._chance.uniform(0.05, 1.0) * self._longest_s,
            )
            for _ in range(count)
        ]
