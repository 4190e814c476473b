"""A simulated broker: replica manager, coordinators, purgatories, in a process that can fail.

A broker runs, or is paused (it does nothing: requests pile up, timeouts fire late), or is dead (its
connections are broken, its waiting requests are gone; its logs stay, as a process that dies leaves
what it wrote to the operating system). Each start is a new process: new purgatories, a new timer, a
new replica manager on the former logs. The states of its groups and transactions go into the trace
after each event that changes them.

Ground rules: everything runs on the engine's thread. In real time the reapers' threads complete
operations too; their responses are handed over to the engine (`Runtime.handed_over`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from purgatory.kafka import (
    GroupManager,
    ReplicaManager,
    TopicPartition,
    TransactionCoordinator,
    TransactionRecord,
)
from purgatory.kafka.groups.group_manager import OnEnded
from purgatory.kafka.log.log import Log, LogConfig
from purgatory.kafka.topics import LogEnd, PartitionState
from purgatory.simulation.coordinators import (
    SimulatedMarkerChannel,
    offsets_partition_of,
    simulated_groups,
    simulated_transactions,
    transactions_partition_of,
)
from purgatory.simulation.engine import NS_PER_MS
from purgatory.simulation.invariants import OVERDUE_MS, CommitWatch, Invariants
from purgatory.simulation.network import Connection, NetworkFaults, Request
from purgatory.simulation.replica_fetcher import Followers
from purgatory.simulation.runtime import Process, Runtime
from purgatory.simulation.scenario import Scenario
from purgatory.trace.observer import TRANSACTION_STATES, CoordinatorState


class Broker:
    """One broker of the cluster.

    Args:
        broker_id: its number.
        scenario: the settings.
        runtime: makes its processes and runs its events.
        watch: follows what it commits.
        invariants: is told of requests that are answered twice or never.
    """

    def __init__(
        self,
        broker_id: int,
        scenario: Scenario,
        runtime: Runtime,
        watch: CommitWatch,
        invariants: Invariants,
    ) -> None:
        self.id = broker_id
        self.alive = False
        self.paused = False
        self.process_number = 0
        self.silences = 0
        self.connections: list[Connection] = []
        self.open_requests: dict[Request, None] = {}
        self.change_isr: Callable[[TopicPartition, int, tuple[int, ...]], bool]
        """Asks the controller for another in-sync set of a partition that it leads."""
        self.groups: GroupManager | None = None
        self.transactions: TransactionCoordinator | None = None
        self.coordinator_of: Callable[[str], TransactionCoordinator | None]
        """Says who coordinates a transactional id, if anybody that lives does."""
        self.markers: SimulatedMarkerChannel | None = None
        """Brings markers to other brokers; None: there are no transactions."""
        self.new_producer_id: Callable[[], int]
        self.on_record: Callable[[str, TransactionRecord], object] | None = None
        self.on_offset_ended: OnEnded | None = None
        """These two take what the trace tells of transactions."""
        self.faults: NetworkFaults
        self.followers: Followers
        self.manager: ReplicaManager
        self.process: Process
        self._scenario = scenario
        self._runtime = runtime
        self._engine = runtime.engine
        self._recorder = runtime.recorder
        self._watch = watch
        self._invariants = invariants
        self._logs: dict[TopicPartition, Log] = {}
        self._log_config = LogConfig(
            segment_bytes=scenario.topic.segment_bytes,
            retention_bytes=scenario.topic.retention_bytes,
            max_batch_bytes=2**31 - 1,
        )
        self._backlog: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    # The process.

    def start(self) -> None:
        """Start a new process on the logs that the last one left."""
        cluster, topic = self._scenario.cluster, self._scenario.topic
        self.process_number += 1
        self._record_state("alive")
        self.process = process = self._runtime.start_process(self.id)
        self.manager = ReplicaManager(
            self.id,
            clock=process.clock,
            produce_purgatory=process.produce,
            fetch_purgatory=process.fetch,
            delete_records_purgatory=process.delete_records,
            min_insync_replicas=topic.min_insync_replicas,
            max_lag_ms=cluster.replica_lag_time_max_ms,
            log_config=self._log_config,
            logs=self._logs,
            new_log=self._new_log(),
            on_isr_change=self.change_isr,
        )
        self._logs = {}
        if self._scenario.has_groups:
            self.groups = simulated_groups(
                self._scenario, self._engine, process, self.manager, self.on_offset_ended
            )
        if self.markers is not None:
            self.transactions = simulated_transactions(
                self, process, self._engine, self.markers, self.new_producer_id, self.on_record
            )
        self.followers.start()
        self.alive, self.paused = True, False
        number = self.process_number
        self._engine.after(
            cluster.replica_lag_time_max_ms * NS_PER_MS // 2, self._expire_isr, number
        )

    def die(self) -> None:
        """End the process: connections break, what waits is gone, the logs stay."""
        self.alive, self.paused = False, False
        self.silences += 1
        self._backlog.clear()
        self.note_open("cancelled")
        self.open_requests.clear()
        self.followers.stop()
        for topic_partition in self._runtime.topic_partitions:
            for purgatory in self.process.purgatories:
                purgatory.cancel_for_key(topic_partition)
        for session in self.manager.fetch_sessions():
            self.process.fetch.cancel_for_key(session)
        self._logs = self.manager.detach_logs()
        self._runtime.end_process(self.process)
        self._record_state("dead")
        for connection in self.connections:
            connection.broken()

    def log_ends(self) -> dict[TopicPartition, LogEnd]:
        """Where its logs end, be it dead or alive."""
        logs = self.manager.logs() if self.alive else self._logs
        return {key: LogEnd(log.end_offset, log.epochs.latest) for key, log in logs.items()}

    def lose_records(self, count: int) -> None:
        """While it is dead: of each of its logs, the last `count` records are gone."""
        for log in self._logs.values() if count else ():
            log.truncate_to(max(log.start_offset, log.end_offset - count))

    def cut_connections(self) -> int:
        """Break the connections of all clients; return how many there are."""
        clients = [connection for connection in self.connections if connection.client_id]
        for connection in clients:
            connection.broken()
        return len(clients)

    def pause(self) -> None:
        """Stand still: nothing is received, answered, fetched or expired until `resume`."""
        self.paused = True
        self.silences += 1
        self._runtime.suspend_process(self.process)
        self._record_state("paused")

    def resume(self) -> None:
        """Go on: first what should have expired, then what it was told, then what it was asked.

        So nobody is refused for a role that was given to it in the meantime.
        """
        self.paused = False
        self._record_state("alive")
        self._runtime.resume_process(self.process)
        backlog, self._backlog = self._backlog, deque()
        asked = (self.receive, self._execute_next)
        for function, args in sorted(backlog, key=lambda entry: entry[0] in asked):
            function(*args)

    def _record_state(self, state: str) -> None:
        if self._runtime.changes is not None:
            self._runtime.changes.broker(self.id, state)

    def _new_log(self) -> Callable[[TopicPartition], Log] | None:
        changes = self._runtime.changes
        return None if changes is None else partial(changes.new_log, self.id, self._log_config)

    def submit(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` in the broker's process: now, after a pause, or never."""
        if self.paused:
            self._backlog.append((function, args))
        elif self.alive:
            function(*args)

    def close(self) -> None:
        """End the run."""
        if self.alive:
            self._runtime.end_process(self.process)

    # Requests.

    def receive(self, request: Request) -> None:
        """Work on a request, or put it behind its connection's other ones."""
        if self.paused:
            self._backlog.append((self.receive, (request,)))
            return
        connection = request.connection
        if not self.alive:
            connection.broken()
            return
        if request.generation != connection.generation:
            return
        if connection.busy:
            connection.queue.append(request)
        else:
            self._execute(request)

    def respond(self, request: Request, answer: Any) -> None:
        """Take the replica manager's answer to a request, on whichever thread it was settled."""
        if not request.may_wait or self._recorder.answering(request):
            self._respond(request, answer)
        else:
            self._runtime.handed_over(self._respond, request, answer)

    def coordinate(self, topic_partition: TopicPartition, leads: bool, leader_epoch: int) -> None:
        """Begin, or cease, to coordinate those whose records are in a partition."""
        if self.groups is not None:
            self.groups.update_role(topic_partition, leads)
        if self.transactions is not None:
            self.transactions.update_role(topic_partition, leads, leader_epoch)

    def look(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Have the commit watch look at partitions whose high watermark may have moved."""
        self._watch.look(self.id, self.manager, topic_partitions)

    def note_open(self, outcome: str) -> None:
        """Record what becomes of the requests that wait."""
        now_ns = self._engine.now_ns()
        for request in self.open_requests:
            if request.may_wait:
                self._recorder.record(request, outcome, now_ns)

    def check_answers(self) -> None:
        """Look for requests that should have been answered long ago. O(open requests)."""
        if self.paused or not self.alive:
            return
        now_ns = self._engine.now_ns()
        since_ns = self.process.resumed_ns
        for request in self.open_requests:
            waited_ns = now_ns - max(request.received_ns, since_ns)
            if waited_ns > (request.timeout_ms + OVERDUE_MS) * NS_PER_MS:
                self._invariants.never_answered(request, self.id)
                return

    def _execute(self, request: Request) -> None:
        request.connection.busy = True
        request.received_ns = self._engine.now_ns()
        request.process = self.process_number
        self.open_requests[request] = None
        request.execute(self)
        if request.answers and request.may_wait:
            # Answered before it came to a purgatory; else it is noted already.
            self._recorder.record(request, "immediate", request.received_ns)

    def _respond(self, request: Request, answer: Any) -> None:
        if request.process != self.process_number or not self.alive:
            return
        if self.paused:
            self._backlog.append((self._respond, (request, answer)))
            return
        request.answers += 1
        if request.answers != 1:
            self._invariants.answered_again(request)
            return
        request.settled_ns = self._engine.now_ns()
        self.open_requests.pop(request, None)
        connection = request.connection
        if request.generation != connection.generation:
            return
        connection.busy = False
        if connection.queue:
            self._engine.after(0, self._execute_next, connection)
        if request.expects_answer:
            connection.answer(request, answer)

    def _execute_next(self, connection: Connection) -> None:
        if self.paused:
            self._backlog.append((self._execute_next, (connection,)))
        elif self.alive and connection.queue and not connection.busy:
            self._execute(connection.queue.popleft())

    # The in-sync set.

    def _expire_isr(self, process_number: int) -> None:
        """Drop laggards from the in-sync sets, every half of the permitted lag."""
        if process_number != self.process_number or not self.alive:
            return
        if not self.paused:
            self.manager.maybe_shrink_isr()
            self.look(self._runtime.topic_partitions)
        period_ns = self._scenario.cluster.replica_lag_time_max_ms * NS_PER_MS // 2
        self._engine.after(max(1, period_ns), self._expire_isr, process_number)


def coordinator_states(
    brokers: Sequence[Broker], assignments: Mapping[TopicPartition, PartitionState]
) -> tuple[dict[str, CoordinatorState], dict[str, CoordinatorState]]:
    """Return all groups and all transactions, as the broker has them that is to coordinate them."""
    groups: dict[str, CoordinatorState] = {}
    transactions: dict[str, CoordinatorState] = {}
    for broker in brokers:
        if not broker.alive:
            continue
        if broker.groups is not None:
            for name, group in broker.groups.groups.items():
                if assignments[offsets_partition_of(name)].leader == broker.id:
                    groups[name] = CoordinatorState(
                        broker.id, group.state.value, group.generation, (*group.members,)
                    )
        if broker.transactions is not None:
            for name, record in broker.transactions.all_transactions():
                leader = assignments[transactions_partition_of(name)].leader
                if leader == broker.id and record.state in TRANSACTION_STATES:
                    state = TRANSACTION_STATES[record.state]
                    epoch = record.producer_epoch
                    transactions[name] = CoordinatorState(broker.id, state, epoch, ())
    return groups, transactions
