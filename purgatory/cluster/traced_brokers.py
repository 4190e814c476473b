"""The part of a cluster's trace that is of brokers: operations, and changes of state.

Ground rules: everything happens on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from purgatory.cluster.observer import ElapsedClock, operation_keys, operation_kind
from purgatory.core.async_purgatory import AsyncPurgatory
from purgatory.core.operation import DelayedOperation, submitted_ns
from purgatory.trace.change_rows import BROKER, PARKED, ChangeRow, due_ms
from purgatory.trace.observer import rows_of
from purgatory.trace.table_rows import OperationRow
from purgatory.trace.trace_tables import Tables

_NS_PER_US = 1_000


class TracedBrokers:
    """Records operations and changes as rows; arguments are those of `trace.ClusterTrace`."""

    def __init__(
        self,
        tables: Tables,
        change: Callable[[ChangeRow], object] | None = None,
        operations: bool = True,
    ) -> None:
        self._tables = tables
        self.operations = operations
        self.clock = ElapsedClock()
        self.now_us = self.clock.now_us
        self.change = change
        self._operations = 0

    @property
    def duration_ms(self) -> int:
        """The duration so far, in milliseconds."""
        return self.clock.now_us() // 1_000

    # ---- operations

    def record_completed(
        self, broker: int, purgatory: str, operation: DelayedOperation, outcome: str, wait_ns: int
    ) -> None:
        """Record a completed operation."""
        self._operations += 1
        end_us = self.now_us()
        wait_us = min(wait_ns // _NS_PER_US, end_us)
        keys = operation_keys(operation)
        self._tables.operation(
            OperationRow(
                broker,
                purgatory,
                self._operations,
                len(keys),
                operation.delay_ms,
                end_us - wait_us,
                end_us,
                wait_us,
                outcome,
                operation_kind(purgatory, operation),
                keys,
            )
        )

    # ---- the state of the cluster

    def record_change(self, kind: str, key: Any, before: Any, value: Any) -> None:
        """Record a change from the observer."""
        assert self.change is not None, "it is observed"
        for row in rows_of(self.now_us(), kind, key, before, value):
            self.change(row)

    def record_started(self, broker: int) -> None:
        """Record that a broker has started."""
        if self.change is not None:
            self.change(ChangeRow(self.now_us(), BROKER, broker, state="alive"))

    def record_stopped(
        self, broker: int, purgatories: Iterable[AsyncPurgatory], died: bool
    ) -> None:
        """Record the waiting operations of a broker that stops. O(operations).

        Args:
            died: whether the broker died; else the cluster stops.
        """
        if self.change is None:
            return
        for purgatory in purgatories:
            for operation in purgatory.core.pending_ends(purgatory.core.num_delayed)[0]:
                self._operations += 1
                start_us = max(0, self.clock.us_of_ns(submitted_ns(operation)))
                self.change(
                    ChangeRow(
                        start_us,
                        PARKED,
                        broker,
                        purgatory.name,
                        number=self._operations,
                        state=operation_kind(purgatory.name, operation),
                        due_ms=due_ms(start_us, operation.delay_ms),
                        names=operation_keys(operation),
                    )
                )
        if died:
            self.change(ChangeRow(self.now_us(), BROKER, broker, state="dead"))
