"""A transactional producer that asks the brokers of a `World`, and asks again as Kafka's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from purgatory.kafka import (
    CommittedOffset,
    EndTransaction,
    ErrorCode,
    InitAnswer,
    ProducerIdentity,
    RecordBatch,
    TopicPartition,
    TransactionCoordinator,
)
from purgatory.kafka.transactions.transaction_verification import refused_outside, verified
from tests.kafka.transaction_world import IN, OFFSETS, OUT, STATE, Node, World

RETRIABLE = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
COMMIT, ABORT = EndTransaction.COMMIT, EndTransaction.ABORT
TIMEOUT_MS = 60_000


class TransactionClient:
    """One producer. Each method takes turns of the world until it is answered.

    With ``verifies`` the brokers ask the coordinator whether its transaction is open.
    """

    def __init__(
        self,
        world: World,
        transactional_id: str = "t",
        timeout_ms: int = TIMEOUT_MS,
        verifies: bool = False,
    ) -> None:
        self.verifies = verifies
        self.world = world
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer = ProducerIdentity(-1, -1)
        self.sequences: dict[TopicPartition, int] = {}

    def init(self, expected: ProducerIdentity | None = None) -> ErrorCode:
        def ask(node: Node, answer: Callable[[Any], object]) -> None:
            node.transactions.init_producer_id(
                self.transactional_id, self.timeout_ms, expected, answer
            )

        found = self._ask(STATE, ask, lambda one: one.error, InitAnswer(ErrorCode.NOT_COORDINATOR))
        if found.error is ErrorCode.NONE:
            self.producer = ProducerIdentity(found.producer_id, found.producer_epoch)
            self.sequences = {}
        return ErrorCode(found.error)

    def add(self, *partitions: TopicPartition) -> ErrorCode:
        def ask(node: Node, answer: Callable[[Any], object]) -> None:
            node.transactions.add_partitions(
                self.transactional_id, self.producer, partitions, answer
            )

        return self._code(STATE, ask, partitions[0])

    def produce(self, tp: TopicPartition, tag: object) -> ErrorCode:
        sequence = self.sequences.get(tp, 0)
        batch = RecordBatch(0, 1, 100, -1, *self.producer, sequence, tag=tag, transactional=True)

        def ask(node: Node, answer: Callable[[Any], object]) -> None:
            if self.verifies:
                asked = self.transactional_id, {tp: [batch]}
                refused = refused_outside(node.broker.manager, *asked, self._coordinator)
                if refused:
                    answer({tp: refused[tp].error})
                    return
            node.broker.manager.append_records(
                1_000,
                -1,
                {tp: batch},
                lambda answers: answer({tp: answers[tp].error}),
            )

        code = self._code(tp, ask, tp)
        if code is ErrorCode.NONE:
            self.sequences[tp] = sequence + 1
        return code

    def commit_offset(self, offset: int, group: str = "g") -> ErrorCode:
        def ask(node: Node, answer: Callable[[Any], object]) -> None:
            if self.verifies:
                asked = self.transactional_id, self.producer, [OFFSETS]
                code = verified(*asked, self._coordinator)[OFFSETS]
                if code is not ErrorCode.NONE:
                    answer({IN: code})
                    return
            node.groups.commit_in_transaction(
                group, self.producer, -1, "", None, {IN: CommittedOffset(offset, -1, "")}, answer
            )

        return self._code(OFFSETS, ask, IN)

    def end(self, how: EndTransaction) -> ErrorCode:
        def ask(node: Node, answer: Callable[[Any], object]) -> None:
            node.transactions.end(self.transactional_id, self.producer, how, answer)

        return ErrorCode(self._ask(STATE, ask, lambda code: code, ErrorCode.NOT_COORDINATOR))

    def transform(self, number: int, how: EndTransaction = COMMIT) -> ErrorCode:
        """Do a whole transaction: a record into each partition, and an offset; the first error."""
        steps: list[Callable[[], ErrorCode]] = [
            lambda: self.add(*OUT),
            *(lambda tp=tp: self.produce(tp, number) for tp in OUT),
            lambda: self.add(OFFSETS),
            lambda: self.commit_offset(number),
            lambda: self.end(how),
        ]
        for step in steps:
            code = step()
            if code is not ErrorCode.NONE:
                return code
        return ErrorCode.NONE

    def _coordinator(self, _: str) -> TransactionCoordinator | None:
        return self.world.live_coordinator()

    def _code(
        self,
        tp: TopicPartition,
        ask: Callable[[Node, Callable[[Any], object]], object],
        of: TopicPartition,
    ) -> ErrorCode:
        gone = {of: ErrorCode.NOT_LEADER_OR_FOLLOWER}
        return ErrorCode(self._ask(tp, ask, lambda codes: codes[of], gone)[of])

    def _ask(
        self,
        tp: TopicPartition,
        ask: Callable[[Node, Callable[[Any], object]], object],
        code_of: Callable[[Any], ErrorCode],
        gone: Any,
    ) -> Any:
        """Ask whoever leads a partition until the answer is none to ask again after."""
        for _ in range(100):
            answers: list[Any] = []
            self.world.ask(self.world.leaders[tp][0], ask, answers.append, gone)
            self.world.run_until(lambda: answers)  # noqa: B023
            if code_of(answers[0]) not in RETRIABLE:
                return answers[0]
            self.world.run(3)
        raise AssertionError(f"asked 100 times, and still {answers[0]}")
