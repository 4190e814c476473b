"""One broker as the live feed has told of it: its purgatories, and their wheels as one.

Each purgatory has a wheel of its own; all have the same ticks, and so the same buckets. Laid over
one another they are the broker's.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from purgatory.cluster.control.feed_turn import FeedTurn
from purgatory.cluster.control.watched_purgatory import WatchedPurgatory
from purgatory.settings.addresses import host_and_port

if TYPE_CHECKING:
    from purgatory.cluster.broker import Broker

MOST_SHOWN = 10_000
"""How many parked operations of a cluster are shown; of more it is a sample."""


class WatchedBroker:
    """Observes a broker until its purgatories are released.

    Args:
        broker: which.
        turn: takes the changes.
    """

    def __init__(self, broker: Broker, turn: FeedTurn) -> None:
        self._broker = broker
        self._turn = turn
        self._alive = broker.alive
        self._connections = broker.connection_count
        self._of_process = broker.purgatories
        self.purgatories = [
            WatchedPurgatory(broker.broker_id, one, turn)
            for one in (broker.purgatories if broker.alive else ())
        ]
        self._levels = self._levels_now()

    @property
    def has_changed(self) -> bool:
        """Whether it died or came back since, or has other purgatories."""
        broker = self._broker
        return broker.alive != self._alive or (
            self._alive
            and (
                broker.purgatories is not self._of_process
                or len(broker.purgatories) != len(self.purgatories)
            )
        )

    @property
    def now_pending(self) -> int:
        """How many operations wait there."""
        return sum(one.now_pending for one in self.purgatories)

    def look(self, waiting: int) -> None:
        """Tell what has changed there; ``waiting`` is how many wait in the whole cluster."""
        for one in self.purgatories:
            # Of too many each purgatory shows its share; at least one of each.
            share = one.now_pending
            if waiting > MOST_SHOWN:
                share = share * MOST_SHOWN // waiting + 1
            one.look(min(share, one.shown + max(0, MOST_SHOWN - self._turn.shown)))
        levels = self._levels_now()
        if levels != self._levels:
            self._levels = levels
            clock_ms = levels[0]["covers_ms"][0]
            self._add("clock", clock_ms=clock_ms, levels=levels)
        if self._broker.connection_count != self._connections:
            self._connections = self._broker.connection_count
            self._add("broker", alive=self._alive, connections=self._connections)

    def tell_life(self) -> None:
        """Tell whether it died, or came back."""
        if self.has_changed:
            broker = self._broker
            self._add("broker", alive=broker.alive, connections=broker.connection_count)
            text = f"broker {broker.broker_id} {'lives' if broker.alive else 'is dead'}"
            level = "info" if broker.alive else "warning"
            self._turn.add(self._turn.clock.now_us(), "said", text=text, level=level)

    def state(self) -> dict[str, Any]:
        """Return what was told of it."""
        levels = self._levels
        wheel = None
        if levels:
            wheel = {
                "tick_ms": levels[0]["tick_ms"],
                "size": levels[0]["size"],
                "clock_ms": levels[0]["covers_ms"][0],
                "start_ms": self._turn.clock.start_ms,
                "levels": levels,
            }
        return {
            "id": self._broker.broker_id,
            "alive": self._alive,
            "address": host_and_port(self._broker.host, self._broker.port),
            "connections": self._connections,
            "wheel": wheel,
            "purgatories": [
                {"name": one.name, "pending": one.pending, "outcomes": dict(one.outcomes)}
                for one in self.purgatories
            ],
        }

    def _add(self, what: str, **values: Any) -> None:
        self._turn.add(self._turn.clock.now_us(), what, broker=self._broker.broker_id, **values)

    def _levels_now(self) -> list[dict[str, Any]]:
        """The levels of the wheels that reach up to them, each of the one furthest ahead."""
        ahead: dict[int, dict[str, Any]] = {}
        for purgatory in self.purgatories:
            for level in purgatory.levels:
                known = ahead.get(level["level"])
                if known is None or level["covers_ms"] > known["covers_ms"]:
                    ahead[level["level"]] = level
        return [ahead[number] for number in sorted(ahead)]
