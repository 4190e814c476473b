"""Notes what became of each request that may wait: counts, waits, and the trace's `operations`.

An operation, here, is a request of the kind that a purgatory holds: a produce with acks=all, a
fetch, a deletion of records. It is `immediate` when its answer came without a wait, whether the
broker had to ask its purgatory for that or not; so the purgatories' own counters, as `/metrics`
shows them, count fewer of these, and the same of all others.

Ground rules: `observer` and `answering` are called on whichever thread settles an operation, the
latter first, inside the same call. Everything else runs on the engine's thread, to which they hand
over what they know.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from purgatory import DelayedOperation
from purgatory.simulation.engine import NS_PER_US
from purgatory.simulation.network import Request
from purgatory.simulation.wait_counts import Waits
from purgatory.trace.table_rows import OperationRow

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed", "pending")
"""What an operation can be counted as; `pending`: open at the end of the run."""

KINDS = ("producer", "follower", "consumer", "admin", "member", "transaction", "coordinator")
"""Who asked."""

WaitsKey = tuple[str, str, int, str]
"""Purgatory, kind, broker and outcome."""


class OperationRecorder:
    """Keeps the waits by purgatory, kind, broker and outcome, and writes the trace's rows.

    Args:
        now_ns: the time since the start of the run.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.write: Callable[[OperationRow], None] | None = None
        """Takes rows of the table; None: nobody wants them."""
        self.waits: dict[WaitsKey, Waits] = {}
        self._thread_id = 0
        self._call_soon: Callable[..., None] | None = None
        self.number_of: Callable[[object], int] | None = None
        """Returns the number of a request, or operation, that is settled; by default, they are
        counted as they are."""
        self._now_ns = now_ns
        self._count = 0
        self._local = threading.local()
        self._answering: Request | None = None

    def hand_over_from_threads(self, thread_id: int, call_soon: Callable[..., None]) -> None:
        """Expect to be called on other threads than the engine's, and hand over by `call_soon`."""
        self._thread_id = thread_id
        self._call_soon = call_soon

    def answering(self, request: Request) -> bool:
        """Note which request is just being answered on this thread; True if it is the engine's."""
        if self._call_soon is not None and threading.get_ident() != self._thread_id:
            self._local.request = request
            return False
        self._answering = request
        return True

    def observe(self, _operation: DelayedOperation, outcome: str, _wait_ns: int) -> None:
        """Note an operation that a purgatory settled: the one that was just answered.

        One that was cancelled was not answered: who cancels it notes that.
        """
        if outcome == "cancelled":
            return
        if self._call_soon is not None and threading.get_ident() != self._thread_id:
            self._call_soon(self.record, self._local.request, outcome, self._now_ns())
        elif self._answering is not None:
            self.record(self._answering, outcome, self._now_ns())
            self._answering = None

    def record(self, request: Request, outcome: str, end_ns: int) -> None:
        """Note what became of a request. O(1)."""
        if request.recorded:
            return
        request.recorded = True
        broker, purgatory, kind = request.connection.broker.id, request.purgatory, request.kind
        start_us, end_us = request.received_ns // NS_PER_US, end_ns // NS_PER_US
        self._note(broker, purgatory, kind, outcome, end_us - start_us)
        if self.write is not None:
            keys, timeout_ms = request.watch_keys, request.timeout_ms
            self._write_row(
                request, broker, purgatory, kind, outcome, start_us, end_us, timeout_ms, keys
            )

    def coordinated_wait(
        self,
        broker: int,
        purgatory: str,
        kind: str,
        operation: DelayedOperation,
        outcome: str,
        wait_ns: int,
    ) -> None:
        """Note what members of groups waited for (each other, a sign of life), or transactions
        (their markers, their time to be up)."""
        end_ns = self._now_ns()
        start_us, end_us = (end_ns - wait_ns) // NS_PER_US, end_ns // NS_PER_US
        self._note(broker, purgatory, kind, outcome, end_us - start_us)
        if self.write is not None:
            keys, timeout_ms = operation._op_keys, operation.delay_ms
            self._write_row(
                operation, broker, purgatory, kind, outcome, start_us, end_us, timeout_ms, keys
            )

    def _note(self, broker: int, purgatory: str, kind: str, outcome: str, wait_us: int) -> None:
        key = (purgatory, kind, broker, outcome)
        waits = self.waits.get(key)
        if waits is None:
            waits = self.waits[key] = Waits()
        waits.add(wait_us)
        self._count += 1

    def _write_row(
        self,
        what: object,
        broker: int,
        purgatory: str,
        kind: str,
        outcome: str,
        start_us: int,
        end_us: int,
        timeout_ms: int,
        keys: Sequence[object],
    ) -> None:
        assert self.write is not None, "rows are wanted"
        number = self._count if self.number_of is None else self.number_of(what)
        self.write(
            OperationRow(
                broker,
                purgatory,
                number,
                len(keys),
                timeout_ms,
                start_us,
                end_us,
                end_us - start_us,
                outcome,
                kind,
                keys,
            )
        )
