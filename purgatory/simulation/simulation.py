"""A run: it builds the cluster of a scenario, runs and checks it, and summarizes the result.

    run = Simulation(load_scenario("steady"))
    summary = run.run()

Ground rules: one run, one thread.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purgatory.simulation.arrivals import read_arrivals, schedule_arrivals
from purgatory.simulation.broker import Broker
from purgatory.simulation.consumer import Consumer, ConsumerGroup
from purgatory.simulation.controller import SimulatedController
from purgatory.simulation.distributions import sampler, stream
from purgatory.simulation.engine import NS_PER_MS, Engine
from purgatory.simulation.faults import SimulatedFaults
from purgatory.simulation.invariants import CommitWatch, Invariants, InvariantViolation, Ledger
from purgatory.simulation.producer import Producer
from purgatory.simulation.producer_group import ProducerGroup
from purgatory.simulation.replica_fetcher import Followers
from purgatory.simulation.scenario import arrivals_path
from purgatory.simulation.scenario_file import LoadedScenario, ScenarioError
from purgatory.simulation.summary import (
    brokers_summary,
    consumers_summary,
    operations_summary,
    producers_summary,
)
from purgatory.simulation.trace import (
    ChangeRecorder,
    OperationRecorder,
    consumers_configuration,
    producers_configuration,
)
from purgatory.trace.rows_in_memory import RowsInMemory
from purgatory.trace.trace_tables import AllOf, Tables
from purgatory.trace.trace_writer import TraceWriter

if TYPE_CHECKING:
    from purgatory.pipeline.jobs.audit.findings import Findings


_CHECK_INTERVAL_MS = 1_000
"""The interval between checks for overdue requests."""


class SimulationInterrupted(Exception):
    """The run was interrupted."""


class Simulation:
    """One run of a scenario.

    Args:
        loaded: the scenario and its folder.
        trace_folder: where to write the trace; None writes none.
        overwrite: replace an existing trace.
        strict: stop at a bad row of a request log, whatever the scenario says.
        on_event: called for faults, elections and the like with a name, and fields with the
            virtual time first.
        publisher: takes the rows of the trace at once, whether or not one is written.
        recorded: keep these rows in memory, for `audit`: some hundred bytes each.

    Raises:
        ArrivalsError: a request log cannot be used.
        ScenarioError: a fault would begin after the last arrival, with which it ends.
        TraceError: the trace cannot be written there.
    """

    def __init__(
        self,
        loaded: LoadedScenario,
        *,
        trace_folder: Path | None = None,
        overwrite: bool = False,
        strict: bool = False,
        on_event: Callable[..., object] | None = None,
        publisher: Tables | None = None,
        recorded: bool = False,
    ) -> None:
        self.scenario = scenario = loaded.scenario
        self.arrivals = {
            group.group: read_arrivals(
                arrivals_path(group.arrivals, loaded.folder), group.arrivals, strict=strict
            )
            for group in scenario.producers
            if group.arrivals is not None
        }
        self.duration_ms = self._duration_ms(loaded.source)
        self.engine = Engine()
        self.recorder = OperationRecorder(self.now_ns)
        self.trace: TraceWriter | None = None
        if trace_folder is not None:
            self.trace = TraceWriter(
                trace_folder,
                run_id=scenario.run_id,
                scenario=scenario.name,
                seed=scenario.seed,
                overwrite=overwrite,
                faults=[fault.model_dump(exclude_none=True) for fault in scenario.faults],
                producers=producers_configuration(scenario),
                consumers=consumers_configuration(scenario),
                timer={
                    "tick_ms": scenario.cluster.timer_tick_ms,
                    "wheel_size": scenario.cluster.timer_wheel_size,
                },
            )
        self._recorded = RowsInMemory() if recorded else None
        self._rows = trace = _merge_tables(self.trace, publisher, self._recorded)
        if trace is not None:
            self.recorder.write = trace.operation
        self._changes: ChangeRecorder | None = None
        if self.trace is not None:
            self._changes = changes = ChangeRecorder(self.engine.now_ns, self.trace.change)
            self.engine.on_event = changes.observe
            self.recorder.operation_number = changes.operation_number
        self.invariants = Invariants(scenario.seed, self.engine.now_ns)
        self.ledger = Ledger(self.invariants)
        self.watch = CommitWatch(self.ledger, self.invariants)
        self._build_brokers()
        self._build_clients()
        self._on_event = on_event
        self._interrupted = False
        self._stopped = False
        self._drained = False
        self._is_ended = False

    def now_ns(self) -> int:
        """The time since the start of the run, in nanoseconds."""
        return self.engine.now_ns()

    def __repr__(self) -> str:
        scenario = self.scenario
        at = f"at {self.now_ns() / 1e9:g} s of {self.duration_ms / 1_000:g} s"
        return f"<{type(self).__name__} {scenario.name!r} seed={scenario.seed} {at}>"

    def run(self, on_progress: Callable[[int], None] | None = None) -> dict[str, Any]:
        """Run to the end.

        Args:
            on_progress: called now and then with the time reached, in ms; the arrivals end at
                `duration_ms`.

        Returns:
            The summary.

        Raises:
            InvariantViolation: an invariant does not hold.
            Interrupted: `interrupt` was called; the trace is marked incomplete.
        """
        try:
            with _relaxed_garbage_collection():
                self._start()
                self.engine.run(self._keep_running(on_progress))
            self.invariants.raise_if_violated()
            if self._interrupted:
                raise SimulationInterrupted(f"interrupted at {self.now_ns() // NS_PER_MS} ms")
            self._check_results()
            summary = self._finish()
            self._is_ended = True
        except BaseException as error:
            self._abandon(error)
            raise
        finally:
            self._close()
        return summary

    def interrupt(self) -> None:
        """End the run at the next millisecond; callable from a signal handler or any thread."""
        self._interrupted = True

    def event(self, name: str, **fields: Any) -> None:
        """Report an event to `on_event`."""
        if self._on_event is not None:
            self._on_event(name, at_ms=self.now_ns() / NS_PER_MS, **fields)

    # Building.

    def _duration_ms(self, source: str) -> int:
        if self.scenario.duration_ms is not None:
            return self.scenario.duration_ms
        end_ms = max(log.last_ns for log in self.arrivals.values()) // NS_PER_MS + 1
        for index, fault in enumerate(self.scenario.faults):
            if fault.at_ms >= end_ms:
                raise ScenarioError(
                    f"{source}: faults[{index}].at_ms = {fault.at_ms:g}: must be below {end_ms}, "
                    "when the run ends with the last arrival; or give duration_ms"
                )
        return end_ms

    def _build_brokers(self) -> None:
        scenario = self.scenario
        self.brokers = [
            Broker(
                number,
                scenario,
                self.engine,
                self.recorder,
                self._changes,
                self.watch,
                self.invariants,
            )
            for number in range(scenario.cluster.brokers)
        ]
        delay_ns = sampler(
            scenario.network.delay_ms, stream(scenario.seed, "controller"), NS_PER_MS
        )
        self.controller = SimulatedController(
            scenario, self.engine, self.brokers, self.watch, delay_ns, self.event
        )
        for broker in self.brokers:
            broker.topic_partitions = self.controller.topic_partitions
            broker.change_isr = self.controller.change_isr
            broker.followers = Followers(broker, self.brokers, self.engine, scenario)

    def _build_clients(self) -> None:
        scenario, trace = self.scenario, self._rows
        self.consumer_groups = [
            ConsumerGroup(
                section,
                scenario,
                self.engine,
                self.controller,
                self.brokers,
                None if trace is None else trace.read,
            )
            for section in scenario.consumers
        ]
        self.consumers = [
            Consumer(group, number)
            for group in self.consumer_groups
            for number in range(group.section.count)
        ]
        self.producer_groups = [
            ProducerGroup(
                section,
                scenario,
                self.engine,
                self.controller,
                self.brokers,
                self.ledger,
                None if trace is None else trace.send,
            )
            for section in scenario.producers
        ]
        numbers = count()
        self.producers = {
            group.name: [Producer(group, next(numbers)) for _ in range(group.section.count)]
            for group in self.producer_groups
        }
        """By the name of their group."""

    # Running.

    def _start(self) -> None:
        changes = self._changes
        if changes is not None:
            changes.begin(self.controller.assignments)
            self.controller.on_change = changes.observe_assignments
        for broker in self.brokers:
            broker.start()
        self.controller.set_up()
        self.faults = SimulatedFaults(
            self.scenario,
            self.engine,
            self.brokers,
            self.controller,
            self.event,
            changes,
        )
        for broker in self.brokers:
            broker.faults = self.faults
        for group in self.producer_groups:
            if group.section.arrivals is None:
                self._start_rate(group)
            else:
                end_ns = self.duration_ms * NS_PER_MS
                schedule_arrivals(
                    self.engine,
                    group,
                    self.producers[group.name],
                    self.arrivals[group.name],
                    end_ns,
                )
        for consumer in self.consumers:
            consumer.start()
        self.engine.call_after(_CHECK_INTERVAL_MS * NS_PER_MS, self._check_overdue)
        self.engine.call_at(self.duration_ms * NS_PER_MS, self._stop_when_drained)

    def _start_rate(self, group: ProducerGroup) -> None:
        (start_ns, gap_ns), engine, size = group.gap_samplers(), self.engine, group.next_size
        end_ns = self.duration_ms * NS_PER_MS

        def arrive(producer: Producer, time_ns: int) -> None:
            producer.add_message(size())
            time_ns += gap_ns()
            if time_ns < end_ns:
                engine.call_at(time_ns, arrive, producer, time_ns)

        for producer in self.producers[group.name]:
            first_ns = start_ns()
            if first_ns < end_ns:
                engine.call_at(first_ns, arrive, producer, first_ns)

    def _keep_running(self, on_progress: Callable[[int], None] | None) -> Callable[[], bool]:
        steps = 0

        def keep_running() -> bool:
            nonlocal steps
            if self.invariants.violation is not None or self._interrupted:
                return False
            steps += 1
            if on_progress is not None and steps % 64 == 0:
                on_progress(self.now_ns() // NS_PER_MS)
            return not self._stopped

        return keep_running

    def _check_overdue(self) -> None:
        for broker in self.brokers:
            broker.check_overdue()
        self.engine.call_after(_CHECK_INTERVAL_MS * NS_PER_MS, self._check_overdue)

    def _stop_when_drained(self) -> None:
        """Stop the run when it is drained, or `drain_ms` is over."""
        over_ns = (self.duration_ms + self.scenario.drain_ms) * NS_PER_MS
        self._drained = self._is_drained()
        if self._drained or self.now_ns() >= over_ns:
            self._stopped = True
            return
        self.engine.call_at(min(over_ns, self.now_ns() + 10 * NS_PER_MS), self._stop_when_drained)

    def _is_drained(self) -> bool:
        if not all(producer.is_idle for group in self.producers.values() for producer in group):
            return False
        if any(request.kind == "producer" for request in self._open_requests()):
            return False
        leaders = self.controller.assignments
        committed: dict[Any, int] = {}
        for topic_partition, assignment in leaders.items():
            broker = self.brokers[assignment.leader] if assignment.leader >= 0 else None
            if broker is None or not broker.alive:
                continue
            partition = broker.manager.partition(topic_partition)
            if partition is None or partition.high_watermark < partition.log_end_offset:
                return False
            committed[topic_partition] = partition.high_watermark
        return all(consumer.has_consumed(committed) for consumer in self.consumers)

    def _open_requests(self) -> Iterator[Any]:
        for broker in self.brokers:
            yield from broker.open_requests

    # The end.

    def _check_results(self) -> None:
        for broker in self.brokers:
            broker.check_overdue()
        self.invariants.raise_if_violated()

    def _finish(self) -> dict[str, Any]:
        for broker in self.brokers:
            broker.record_open("pending")
        for group in self.producer_groups:
            for producer in self.producers[group.name]:
                producer.record_open_attempts()
            counts = group.counts
            completed = counts.acknowledged + counts.unanswered + counts.failed
            counts.unsettled = counts.records - completed
        summary = self.summary()
        if self.trace is not None:
            self.trace.finish(self.now_ns() // NS_PER_MS, summary)
        return summary

    def audit(self, *, expect: Sequence[str] = (), witnesses: int = 10) -> Findings:
        """Audit the run: order, duplicates and losses among the clients' records.

        In this process, without Java; some tenths of a second for 10,000 records.

        Args:
            expect: `order`, `once`, `no-loss`, `one-writer`: guarantees whose violation counts even
                where the settings permit it.
            witnesses: how many cases of each anomaly include their rows.

        Raises:
            ValueError: the simulation was not made with `recorded`.
            SessionError: DuckDB is not installed (the extra `analysis`).
        """
        if self._recorded is None:
            raise ValueError("nothing was recorded: Simulation(..., recorded=True)")
        from purgatory.pipeline.engines.duckdb.audit import audit_arrow
        from purgatory.pipeline.jobs.audit.anomalies import AUDIT_TABLES
        from purgatory.pipeline.jobs.audit.client_settings import configuration_of_head

        configuration = configuration_of_head(
            self.scenario.run_id,
            producers_configuration(self.scenario),
            consumers_configuration(self.scenario),
            complete=self._is_ended,
        )
        run_id = self.scenario.run_id
        tables = self._recorded.tables(run_id, AUDIT_TABLES)
        return audit_arrow(run_id, tables, configuration, expect=expect, witnesses=witnesses)

    def summary(self) -> dict[str, Any]:
        """The summary of the run so far."""
        return {
            "scenario": self.scenario.name,
            "seed": self.scenario.seed,
            "virtual_ms": self.now_ns() // NS_PER_MS,
            "drained": self._drained,
            "purgatories": operations_summary(self.recorder.waits),
            "brokers": brokers_summary(self.recorder.waits),
            "producers": producers_summary(self.producer_groups, self.arrivals),
            "consumers": consumers_summary(self.consumer_groups),
            "elections": self.controller.elections,
            "unclean_elections": self.controller.unclean_elections,
            "faults": self.faults.begun_count,
        }

    def _abandon(self, error: BaseException) -> None:
        if self.trace is None:
            return
        if isinstance(error, SimulationInterrupted | KeyboardInterrupt):
            reason = "interrupted"
        elif isinstance(error, InvariantViolation):
            reason = f"invariant violated: {error}"
        else:
            reason = f"failed: {type(error).__name__}"
        self.trace.abandon(self.now_ns() // NS_PER_MS, reason)

    def _close(self) -> None:
        for broker in self.brokers:
            broker.close()
        self.engine.close()


@contextmanager
def _relaxed_garbage_collection() -> Iterator[None]:
    """Collect garbage less often: a run makes millions of objects, hardly any of them cyclic."""
    before, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.collect()
    try:
        if not is_frozen:  # what the program has frozen stays so
            gc.freeze()
        gc.set_threshold(500_000, 20, 100)
        yield
    finally:
        gc.set_threshold(*before)
        if not is_frozen:
            gc.unfreeze()


def _merge_tables(*tables: Tables | None) -> Tables | None:
    targets = [target for target in tables if target is not None]
    return targets[0] if len(targets) == 1 else AllOf(targets) if targets else None
