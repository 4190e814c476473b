"""The steps of an instance of a transactional producer: it asks, waits, and asks again.

Ground rules: everything runs on the engine's thread. One step is under way at a time: ``_step``
counts them, and what comes of one that is over is passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from purgatory.kafka import ErrorCode, ProducerIdentity, TopicPartition
from purgatory.simulation.network import Connection
from purgatory.simulation.simulated_transactions import transactions_partition_of
from purgatory.simulation.transactional_group import TransactionalGroup
from purgatory.simulation.transactional_requests import Answered, AskedBy, TransactionRequest

PASSING = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""What is refused so may be asked again."""
FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Who is told this has a successor, or was aborted because it took too long."""


class InstanceSteps:
    """What an instance asks, on connections of its own.

    ``producer`` is who it is, once it knows.

    Args:
        group: what it shares with others.
        transactional_id: its own.
        fenced: is called when an answer says that it is fenced.
    """

    def __init__(
        self, group: TransactionalGroup, transactional_id: str, fenced: Callable[[], object]
    ) -> None:
        self.producer: ProducerIdentity | None = None
        self._group = group
        self._transactional_id = transactional_id
        self._coordinator = transactions_partition_of(transactional_id)
        self._fenced = fenced
        self._engine = group.engine
        self._connections: dict[tuple[int, bool], Connection] = {}
        self._step = 0

    def ask(
        self,
        make: Callable[[AskedBy, Connection, Answered], TransactionRequest],
        answered: Answered,
        place: TopicPartition | None = None,
        error_of: Callable[[Any], object] = lambda answer: answer,
    ) -> None:
        """Ask who leads a partition until an answer comes that doesn't pass.

        Args:
            make: makes the request.
            answered: takes the answer.
            place: the partition; without it, the one whose leader coordinates the transactional id.
            error_of: returns the error in an answer.
        """
        self._step += 1
        asked_by = AskedBy(self._transactional_id, self.producer)

        def ask() -> None:
            leader = self._group.leader_of(place or self._coordinator)
            if leader < 0:
                self.later(ask)
                return
            connection = self.connection(leader, coordinates=True)
            connection.send(make(asked_by, connection, take))

        def take(answer: Any) -> None:
            if step != self._step:
                return
            if answer is None:
                self.later(ask)
                return
            error = ErrorCode.NONE if isinstance(answer, dict) else error_of(answer)
            if error in PASSING:
                self.later(ask)
            elif error in FENCED:
                self._fenced()
            else:
                answered(answer)

        step = self._step
        ask()

    def later(self, function: Callable[[], object], after_ns: int | None = None) -> None:
        """Call a function after the back-off, or after that time, if it is the same step then."""
        step = self._step

        def call() -> None:
            if step == self._step:
                function()

        self._engine.after(self._group.backoff_ns if after_ns is None else after_ns, call)

    def connection(self, broker_id: int, *, coordinates: bool) -> Connection:
        """The connection to a broker: what coordinators are asked doesn't wait for produces."""
        connection = self._connections.get((broker_id, coordinates))
        if connection is None:
            connection = self._group.connect(broker_id, _nothing)
            self._connections[broker_id, coordinates] = connection
        return connection

    def stop(self) -> None:
        """Take no answer any more."""
        self._step += 1
        for connection in self._connections.values():
            connection.close()


def _nothing() -> None:
    """A connection broke: the requests in flight are told."""
