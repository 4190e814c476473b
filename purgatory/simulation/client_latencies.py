"""How long a group's clients waited: by attempt and by record, and where an attempt's time went.

An attempt lasts from when a record is sent to when its answer comes, or its connection breaks. That
is more than the wait that a purgatory counts, which begins when the broker takes the request up: a
broker serves one request of a connection at a time, so the next one queues until the answer is
out, however ready what it waits for may be. An attempt that is answered is the sum of network,
queue and wait; a broker's own work, storage included, takes no time here.

Ground rules: everything runs on the engine's thread.
"""

from __future__ import annotations

from purgatory.simulation.engine import NS_PER_US
from purgatory.simulation.messages import Batch, Message
from purgatory.simulation.network import Request
from purgatory.simulation.wait_counts import Waits

SPANS = ("record", "attempt", "network", "queue", "wait", "broken")
"""What is timed. `record`: from its arrival at the producer until it's acknowledged. `attempt`:
from send to answer or break, which is, of those answered, `network` there and back, `queue` behind
others of its connection, and `wait` from when the broker took it up until it answered; and of
those without an answer, `broken`."""


class Latencies:
    """Times of one group of producers, by span. An attempt counts for each record in it."""

    __slots__ = ("_attempt", "_broken", "_network", "_queue", "_record", "_wait", "by_span")

    def __init__(self) -> None:
        self.by_span = {span: Waits() for span in SPANS}
        (self._record, self._attempt, self._network, self._queue, self._wait, self._broken) = (
            self.by_span.values()
        )

    def answered(self, request: Request, batch: Batch, now_ns: int) -> None:
        """The answer to an attempt of each record of a batch came. O(1)."""
        sent_us, now_us = batch.sent_ns // NS_PER_US, now_ns // NS_PER_US
        served_us = request.received_ns // NS_PER_US
        attempt_us = now_us - sent_us
        queue_us = served_us - request.arrived_ns // NS_PER_US
        wait_us = request.settled_ns // NS_PER_US - served_us
        records = len(batch.messages)
        self._attempt.add(attempt_us, records)
        self._network.add(attempt_us - queue_us - wait_us, records)
        self._queue.add(queue_us, records)
        self._wait.add(wait_us, records)

    def broke(self, batch: Batch, now_ns: int) -> None:
        """The connection broke before the answer came. O(1)."""
        broken_us = now_ns // NS_PER_US - batch.sent_ns // NS_PER_US
        self._attempt.add(broken_us, len(batch.messages))
        self._broken.add(broken_us, len(batch.messages))

    def acknowledged(self, message: Message, now_ns: int) -> None:
        """A record was acknowledged for the first time. O(1)."""
        self._record.add(now_ns // NS_PER_US - message.created_ns // NS_PER_US)
