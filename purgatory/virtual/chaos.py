"""Random faults in a world: a plan that the seed draws before the world begins.

The default kinds keep the guarantees of a healthy application: records acknowledged by all in-sync
replicas, at least two of them, are stored in order, and the forced data of a host's disk is there
after a crash. The opt-in kinds may break them, and are drawn only by name. The plan is drawn at
once, so that a run without some of its faults has the same others, as shrinking needs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from purgatory.settings.problems import known_names
from purgatory.virtual.clocks import US_PER_S
from purgatory.virtual.errors import WorldError
from purgatory.virtual.hosts import Host
from purgatory.virtual.network import VirtualNetwork

_MAX_OFFSET_S: Final = 86_400


class DrawnFault(NamedTuple):
    """A fault before it has a number."""

    text: str
    begin: Callable[[], object]


class Kind(NamedTuple):
    """A kind of faults.

    Args:
        name: the name for ``kinds``.
        draw: draws a fault for a target, and a duration in seconds.
        targets: the brokers or hosts that may have the fault.
        is_default: whether it is drawn unless kinds are named.
    """

    name: str
    draw: Callable[[Any, float], DrawnFault]
    targets: Sequence[Any]
    is_default: bool = True


def call_after(network: VirtualNetwork, after_s: float, call: Callable[[], object]) -> None:
    """Call the function that ends a fault, after so many seconds."""
    network.loop.call_at_us(network.clock.now_us + round(after_s * US_PER_S), call)


class HostKinds:
    """The kinds of faults of hosts.

    Args:
        rng: draws the details of a fault.
        hosts: the hosts to crash, pause and isolate.
        nodes: the names of all other nodes, from which a host is isolated.
    """

    def __init__(
        self,
        rng: random.Random,
        hosts: Sequence[Host],
        network: VirtualNetwork,
        nodes: Iterable[str],
    ) -> None:
        self._rng = rng
        self._hosts = hosts
        self._network = network
        self._nodes = [*nodes, *(host.name for host in hosts)]

    def kinds(self) -> Iterator[Kind]:
        """Yield all kinds; none without hosts."""
        if self._hosts:
            yield Kind("crash_host", self._crash, self._hosts)
            yield Kind("pause_host", self._pause, self._hosts)
            yield Kind("isolate_host", self._isolate, self._hosts)
            yield Kind("jump_host_clock", self._jump_clock, self._hosts, is_default=False)

    def _crash(self, host: Host, for_s: float) -> DrawnFault:
        def begin() -> None:
            if host.state != "down":
                host.crash()
                call_after(self._network, for_s, restart)

        def restart() -> None:
            if host.state == "down":
                host.restart()

        return DrawnFault(f"crash of {host.name} for {for_s:.3f} s", begin)

    def _pause(self, host: Host, for_s: float) -> DrawnFault:
        def begin() -> None:
            if host.state == "running":
                host.pause()
                call_after(self._network, for_s, host.resume)

        return DrawnFault(f"pause of {host.name} for {for_s:.3f} s", begin)

    def _isolate(self, host: Host, for_s: float) -> DrawnFault:
        others = [node for node in self._nodes if node != host.name]

        def begin() -> None:
            call_after(self._network, for_s, self._network.partition(host.name, others).end)

        return DrawnFault(f"partition of {host.name} from all others for {for_s:.3f} s", begin)

    def _jump_clock(self, host: Host, for_s: float) -> DrawnFault:
        offset_s = self._rng.randint(-_MAX_OFFSET_S, _MAX_OFFSET_S)

        def begin() -> None:
            host.set_clock(f"{offset_s}s")
            call_after(self._network, for_s, lambda: host.set_clock("0s"))

        return DrawnFault(f"clock of {host.name} {offset_s:+} s for {for_s:.3f} s", begin)


def draw_faults(
    rng: random.Random,
    count: int,
    known: Iterable[Kind],
    names: Iterable[str] | None,
    longest_s: float,
) -> Sequence[DrawnFault]:
    """Draw so many faults.

    Args:
        known: all kinds of faults that the world can have.
        names: the kinds to draw; None: the default ones.
        longest_s: the maximal duration of a fault.

    Raises:
        WorldError: a kind is unknown, or there are none.
    """
    kinds = {kind.name: kind for kind in known}
    defaults = [kind.name for kind in kinds.values() if kind.is_default]
    selected = defaults if names is None else list(names)
    if unknown := [name for name in selected if name not in kinds]:
        raise WorldError(f"kinds: there is no {unknown[0]!r}; {known_names(unknown[0], kinds)}")
    if not selected:
        raise WorldError("kinds: at least one is needed")

    def draw() -> DrawnFault:
        kind = kinds[rng.choice(selected)]
        return kind.draw(rng.choice(kind.targets), rng.uniform(0.05, 1.0) * longest_s)

    return [draw() for _ in range(count)]
