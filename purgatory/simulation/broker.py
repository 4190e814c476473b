"""A simulated broker: replica manager, coordinators, purgatories, in a process that can fail.

A broker runs, or is paused (requests pile up, timeouts fire late), or is dead (its connections are
broken, its waiting requests are lost; its logs remain, as writes that a process made before its
death do). Each start is a new process: new purgatories, a new timer, a
new replica manager on the former logs. The states of its groups and transactions go into the trace
after each event that changes them.

Ground rules: everything runs on the engine's thread. In real time the reapers' threads complete
operations too; their responses go to the engine by `Runtime.call_soon_threadsafe`.
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
    """One broker of the cluster."""

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
        """Requests another in-sync set from the controller, as `SimulatedController.change_isr`."""
        self.groups: GroupManager | None = None
        self.transactions: TransactionCoordinator | None = None
        self.coordinator_of: Callable[[str], TransactionCoordinator | None]
        """Returns the live coordinator of a transactional id, or None."""
        self.markers: SimulatedMarkerChannel | None = None
        """Sends markers to other brokers; None: there are no transactions."""
        self.new_producer_id: Callable[[], int]
        self.on_record: Callable[[str, TransactionRecord], object] | None = None
        self.on_offset_ended: OnEnded | None = None
        """Both take transactions for the trace."""
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
        """Start a new process on the logs of the last one."""
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
        self._engine.call_after(
            cluster.replica_lag_time_max_ms * NS_PER_MS // 2, self._shrink_isrs, number
        )

    def kill(self) -> None:
        """End the process: connections break, waiting requests are lost, the logs remain."""
        self.alive, self.paused = False, False
        self.silences += 1
        self._backlog.clear()
        self.record_open("cancelled")
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
            connection.close_by_broker()

    def log_ends(self) -> dict[TopicPartition, LogEnd]:
        """The ends of its logs, whether it is alive or not."""
        logs = self.manager.logs() if self.alive else self._logs
        return {key: LogEnd(log.end_offset, log.epochs.latest) for key, log in logs.items()}

    def lose_records(self, count: int) -> None:
        """Lose the last `count` records of each log, while it is dead."""
        for log in self._logs.values() if count else ():
            log.truncate_to(max(log.start_offset, log.end_offset - count))

    def cut_connections(self) -> int:
        """Break the connections of all clients; return how many there are."""
        clients = [connection for connection in self.connections if connection.client_id]
        for connection in clients:
            connection.close_by_broker()
        return len(clients)

    def pause(self) -> None:
        """Pause: nothing is received, responded, fetched or expired until `resume`."""
        self.paused = True
        self.silences += 1
        self._runtime.suspend_process(self.process)
        self._record_state("paused")

    def resume(self) -> None:
        """Resume: first expirations, then the controller's commands, then requests.

        So no request fails for a role that the broker got in the meantime.
        """
        self.paused = False
        self._record_state("alive")
        self._runtime.resume_process(self.process)
        backlog, self._backlog = self._backlog, deque()
        request_functions = (self.receive, self._execute_next)
        for function, args in sorted(backlog, key=lambda entry: entry[0] in request_functions):
            function(*args)

    def _record_state(self, state: str) -> None:
        if self._runtime.changes is not None:
            self._runtime.changes.record_broker(self.id, state)

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
        """End the process at the end of the run."""
        if self.alive:
            self._runtime.end_process(self.process)

    # Requests.

    def receive(self, request: Request) -> None:
        """Handle a request, or queue it behind others of its connection."""
        if self.paused:
            self._backlog.append((self.receive, (request,)))
            return
        connection = request.connection
        if not self.alive:
            connection.close_by_broker()
            return
        if request.generation != connection.generation:
            return
        if connection.busy:
            connection.queue.append(request)
        else:
            self._execute(request)

    def respond(self, request: Request, response: Any) -> None:
        """Take the response to a request, on any thread."""
        if not request.is_delayable or self._recorder.begin_response(request):
            self._respond(request, response)
        else:
            self._runtime.call_soon_threadsafe(self._respond, request, response)

    def update_coordinator(
        self, topic_partition: TopicPartition, leads: bool, leader_epoch: int
    ) -> None:
        """Begin, or cease, to coordinate the groups or transactions of a partition."""
        if self.groups is not None:
            self.groups.update_role(topic_partition, leads)
        if self.transactions is not None:
            self.transactions.update_role(topic_partition, leads, leader_epoch)

    def observe_commits(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Read newly committed batches of partitions whose high watermark may have moved."""
        self._watch.observe_commits(self.id, self.manager, topic_partitions)

    def record_open(self, outcome: str) -> None:
        """Record the outcome of the waiting requests."""
        now_ns = self._engine.now_ns()
        for request in self.open_requests:
            if request.is_delayable:
                self._recorder.record(request, outcome, now_ns)

    def check_overdue(self) -> None:
        """Check for requests whose response is long overdue. O(open requests)."""
        if self.paused or not self.alive:
            return
        now_ns = self._engine.now_ns()
        since_ns = self.process.resumed_ns
        for request in self.open_requests:
            waited_ns = now_ns - max(request.received_ns, since_ns)
            if waited_ns > (request.timeout_ms + OVERDUE_MS) * NS_PER_MS:
                self._invariants.record_missing_response(request, self.id)
                return

    def _execute(self, request: Request) -> None:
        request.connection.busy = True
        request.received_ns = self._engine.now_ns()
        request.process = self.process_number
        self.open_requests[request] = None
        request.execute(self)
        if request.response_count and request.is_delayable:
            # It never came to a purgatory, which would have recorded it.
            self._recorder.record(request, "immediate", request.received_ns)

    def _respond(self, request: Request, response: Any) -> None:
        if request.process != self.process_number or not self.alive:
            return
        if self.paused:
            self._backlog.append((self._respond, (request, response)))
            return
        request.response_count += 1
        if request.response_count != 1:
            self._invariants.record_duplicate_response(request)
            return
        request.response_ns = self._engine.now_ns()
        self.open_requests.pop(request, None)
        connection = request.connection
        if request.generation != connection.generation:
            return
        connection.busy = False
        if connection.queue:
            self._engine.call_after(0, self._execute_next, connection)
        if request.expects_response:
            connection.send_response(request, response)

    def _execute_next(self, connection: Connection) -> None:
        if self.paused:
            self._backlog.append((self._execute_next, (connection,)))
        elif self.alive and connection.queue and not connection.busy:
            self._execute(connection.queue.popleft())

    # The in-sync set.

    def _shrink_isrs(self, process_number: int) -> None:
        """Remove lagging replicas from the in-sync sets, every half of the maximal lag."""
        if process_number != self.process_number or not self.alive:
            return
        if not self.paused:
            self.manager.maybe_shrink_isr()
            self.observe_commits(self._runtime.topic_partitions)
        period_ns = self._scenario.cluster.replica_lag_time_max_ms * NS_PER_MS // 2
        self._engine.call_after(max(1, period_ns), self._shrink_isrs, process_number)


def coordinator_states(
    brokers: Sequence[Broker], assignments: Mapping[TopicPartition, PartitionState]
) -> tuple[dict[str, CoordinatorState], dict[str, CoordinatorState]]:
    """Return all groups and transactions of the coordinators."""
    groups: dict[str, CoordinatorState] = {}
    transactions: dict[str, CoordinatorState] = {}
    for broker in brokers:
        if not broker.alive:
            continue
        if broker.groups is not None:
            for name, group in broker.groups.classic.groups.items():
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
