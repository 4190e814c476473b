"""What the viewers of a cluster have been told of it: a state, and the changes since, in turns.

It observes the cluster from its making until it is released. A broker that died or came back makes
it stale: what that broker's purgatories held is gone without a word, so all is told anew.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from purgatory.cluster.control.feed_turn import MOST_NEW, FeedTurn
from purgatory.cluster.control.watched_broker import MOST_SHOWN, WatchedBroker
from purgatory.cluster.control.watched_parts import WatchedParts

if TYPE_CHECKING:
    from purgatory.cluster.cluster import Cluster


class LiveModel:
    """Observes a cluster.

    Args:
        cluster: which.
        turn: takes the changes.
    """

    def __init__(self, cluster: Cluster, turn: FeedTurn) -> None:
        self._turn = turn
        self._brokers = [WatchedBroker(broker, turn) for broker in cluster.brokers.values()]
        self._parts = WatchedParts(cluster, turn)
        turn.end()  # what was noted so far is part of the state

    async def begin(self) -> None:
        """Find what is parked, in parts between which others are served."""
        for _ in range(MOST_SHOWN // MOST_NEW + 1):
            self.look()
            if self._turn.new < MOST_NEW:
                break
            self._turn.end()
            await asyncio.sleep(0)
        self._turn.end()

    def release(self) -> None:
        """Observe nothing any more."""
        for broker in self._brokers:
            for purgatory in broker.purgatories:
                purgatory.release()

    def look(self) -> None:
        """Tell what has changed. O(tasks on the wheels), most of which cost some nanoseconds."""
        waiting = sum(broker.now_pending for broker in self._brokers)
        for broker in self._brokers:
            broker.look(waiting)
        self._parts.look()

    def is_stale(self) -> bool:
        """Whether changes can't tell any more what has become of it."""
        return self._parts.gone or any(one.has_changed for one in self._brokers)

    def tell_brokers(self) -> None:
        """Tell which brokers died and came back, and what that has changed."""
        for broker in self._brokers:
            broker.tell_life()
        self._parts.look()

    def state(self) -> dict[str, Any]:
        """Return what was told until now, as ``view/state`` has it."""
        rows = [
            row
            for broker in self._brokers
            for purgatory in broker.purgatories
            for row in purgatory.rows()
        ]
        return {
            "at_us": self._turn.from_us,
            "brokers": [one.state() for one in self._brokers],
            "operations": rows,
            **self.counts(),
            **self._parts.state(),
            "unknown": [],
        }

    def counts(self) -> dict[str, int]:
        """Return how many operations wait by what was told, and how many are shown of these."""
        of_all = (one for broker in self._brokers for one in broker.purgatories)
        pending = sum(one.pending for one in of_all)
        return {"pending": pending, "shown": self._turn.shown}

    def end_turn(self) -> dict[str, Any] | None:
        """Return what changed since the last turn, as ``view/changes`` has it; None: nothing."""
        begun_us, until_us, changes = self._turn.end()
        if not changes:
            return None
        return {"from_us": begun_us, "until_us": until_us, "changes": changes, **self.counts()}
