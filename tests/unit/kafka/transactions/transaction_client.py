"""A transactional producer that asks the brokers of a `World`, and asks again as Kafka's do."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from purgatory.kafka import (
    CommittedOffset,
    ErrorCode,
    InitProducerIdResult,
    ProducerIdentity,
    RecordBatch,
    TopicPartition,
    TransactionCoordinator,
    TransactionResult,
)
from purgatory.kafka.transactions.transaction_verification import (
    VerificationErrors,
    add_partitions,
    add_partitions_to_txn,
    error_responses,
    verification_errors,
    verify_partitions,
)
from tests.unit.kafka.transactions.transaction_world import (
    IN,
    OFFSETS,
    OUT,
    STATE,
    Codes,
    Node,
    World,
)

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
COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT
TIMEOUT_MS = 60_000


class FarCoordinator:
    """The coordinator as a leader on another broker asks it, by messages."""

    def __init__(self, requester: Node) -> None:
        self._asked_by = requester

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        respond: Callable[[Codes], object],
        version: int,
    ) -> None:
        world, requester = self._asked_by.world, self._asked_by

        def ask(node: Node, answer: Callable[[Codes], object]) -> None:
            node.transactions.add_partitions(
                transactional_id, producer, partitions, answer, version
            )

        gone = dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        coordinator, _, _ = world.leaders[STATE]
        world.ask(
            coordinator,
            ask,
            lambda codes: world.post(requester, lambda: respond(codes)),
            gone,
        )


class TransactionClient:
    """One producer. Each method takes turns of the world until it is answered.

    With ``verifies`` the brokers ask the coordinator whether its transaction is open. With ``anew``
    they also take partitions in, and each end raises its epoch.
    """

    def __init__(
        self,
        world: World,
        transactional_id: str = "t",
        timeout_ms: int = TIMEOUT_MS,
        verifies: bool = False,
        anew: bool = False,
    ) -> None:
        self.anew = anew
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

        found = self._ask(
            STATE, ask, lambda one: one.error, InitProducerIdResult(ErrorCode.NOT_COORDINATOR)
        )
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
            def go_on(refused: VerificationErrors) -> None:
                if refused:
                    answer({tp: refused[tp].error})
                    return
                node.broker.manager.append_records(
                    1_000,
                    -1,
                    {tp: batch},
                    lambda answers: answer({tp: answers[tp].error}),
                )

            asked = self.transactional_id, {tp: [batch]}
            if self.anew:
                add_partitions_to_txn(
                    node.broker.manager,
                    *asked,
                    lambda _: self._far(node),
                    lambda codes: go_on(error_responses(self.transactional_id, codes)),
                )
            elif self.verifies:
                coordinator = self._coordinator
                errors = verification_errors(
                    node.broker.manager, *asked, coordinator, knows_abortable=True
                )
                go_on(errors)
            else:
                go_on({})

        code = self._code(tp, ask, tp)
        if code is ErrorCode.NONE:
            self.sequences[tp] = sequence + 1
        return code

    def commit_offset(self, offset: int, group: str = "g") -> ErrorCode:
        def ask(node: Node, answer: Callable[[Any], object]) -> None:
            def go_on(codes: Codes) -> None:
                if codes[OFFSETS] is not ErrorCode.NONE:
                    answer({IN: codes[OFFSETS]})
                    return
                of_nobody = self.producer, -1, "", None
                offsets = {IN: CommittedOffset(offset, -1, "")}
                node.groups.offset_metadata.commit_in_transaction(
                    group, *of_nobody, offsets, answer
                )

            asked = self.transactional_id, self.producer, [OFFSETS]
            if self.anew:
                add_partitions(*asked, lambda _: self._far(node), go_on)
            elif self.verifies:
                go_on(verify_partitions(*asked, self._coordinator, knows_abortable=True))
            else:
                go_on({OFFSETS: ErrorCode.NONE})

        return self._code(OFFSETS, ask, IN)

    def end(self, how: TransactionResult) -> ErrorCode:
        if self.anew:
            return self._end_anew(how)

        def ask(node: Node, answer: Callable[[Any], object]) -> None:
            node.transactions.end(self.transactional_id, self.producer, how, answer)

        return ErrorCode(self._ask(STATE, ask, lambda code: code, ErrorCode.NOT_COORDINATOR))

    def _end_anew(self, how: TransactionResult) -> ErrorCode:
        def ask(node: Node, answer: Callable[[Any], object]) -> None:
            node.transactions.end_and_bump_epoch(self.transactional_id, self.producer, how, answer)

        found = self._ask(
            STATE, ask, lambda one: one.error, InitProducerIdResult(ErrorCode.NOT_COORDINATOR)
        )
        if found.error is ErrorCode.NONE:
            before, self.producer = self.producer, ProducerIdentity(*found[1:])
            assert self.producer != before
            self.sequences = {}
        return ErrorCode(found.error)

    def steps(self, number: int, how: TransactionResult = COMMIT) -> list[Callable[[], ErrorCode]]:
        """Return the steps of a transaction: a record into each partition, and an offset."""
        takes_in = not self.anew
        return [
            *[lambda: self.add(*OUT)] * takes_in,
            *(lambda tp=tp: self.produce(tp, number) for tp in OUT),
            *[lambda: self.add(OFFSETS)] * takes_in,
            lambda: self.commit_offset(number),
            lambda: self.end(how),
        ]

    def transform(self, number: int, how: TransactionResult = COMMIT) -> ErrorCode:
        """Do a whole transaction; return the first error."""
        for step in self.steps(number, how):
            code = step()
            if code is not ErrorCode.NONE:
                return code
        return ErrorCode.NONE

    def _coordinator(self, _: str) -> TransactionCoordinator | None:
        return self.world.live_coordinator()

    def _far(self, node: Node) -> Any:
        return FarCoordinator(node)

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
        """Ask the leader of a partition until the response is not retriable."""
        for _ in range(100):
            answers: list[Any] = []
            self.world.ask(self.world.leaders[tp][0], ask, answers.append, gone)
            self.world.run_until(lambda: answers)  # noqa: B023
            if code_of(answers[0]) not in RETRIABLE:
                return answers[0]
            self.world.run(3)
        raise AssertionError(f"asked 100 times, and still {answers[0]}")
