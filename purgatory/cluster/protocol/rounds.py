"""How connections share an event loop, so that none can keep the others waiting.

Connections that have requests serve them in rounds. In a round each of them has an equal part of
``ROUND_S``, and at least one request; a client with more of them waits for the next round. Between
two rounds lie some turns of the event loop, in which a client without its part yet is served at
once, followers copy what was appended, and answers go out. So a client waits for no more than one
part of each other client, however many requests those have sent, and what it asks for is copied and
answered before they go on.

While there is only one connection with requests, it has the whole of each round: what the turns
between cost is paid once for dozens of requests.

Ground rules
------------
* Everything happens on the event loop's thread. All brokers of a cluster share one `Rounds`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

ROUND_S = 0.005
"""How long connections serve in a round, all together."""
TURNS_BETWEEN = 5
"""Turns of the event loop: in so many a produce with acks=all is appended, copied and answered."""


class Rounds:
    """Counts the rounds, and who serves in them.

    Args:
        now_s: the time in seconds.
    """

    __slots__ = ("_last_sharers", "_sharers", "_turns_left", "now_s", "number")

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s
        self.number = 0
        self._sharers = 0
        self._last_sharers = 0
        self._turns_left = 0

    def begin_part(self) -> float:
        """Count one who serves in this round; return when its part of it is over."""
        if self._sharers == 0:
            self._turns_left = TURNS_BETWEEN
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._sharers += 1
        return self.now_s() + ROUND_S / max(self._sharers, self._last_sharers)

    def _next_turn(self) -> None:
        self._turns_left -= 1
        if self._turns_left:
            asyncio.get_running_loop().call_soon(self._next_turn)
            return
        self.number += 1
        self._last_sharers = self._sharers
        self._sharers = 0


class EndlessRound(Rounds):
    """One round that does not end, where computing takes no time and so nobody keeps anybody
    waiting: in a virtual world."""

    __slots__ = ()

    def begin_part(self) -> float:
        return math.inf


class Part:
    """What one connection has of the rounds."""

    __slots__ = ("_ends_s", "_round", "_rounds")

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._round = -1
        self._ends_s = 0.0

    def is_over(self) -> bool:
        """Whether the next request has to wait for the next round."""
        rounds = self._rounds
        if self._round != rounds.number:
            self._round = rounds.number
            self._ends_s = rounds.begin_part()
            return False
        return rounds.now_s() >= self._ends_s
