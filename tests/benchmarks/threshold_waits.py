"""The cost of an append while 10,000 fetches wait on its partition: by thresholds, and by a scan.

    python -m tests.benchmarks.threshold_waits

Each fetch waits for bytes at the log's end, each for some more than the one before. By thresholds
they wait as the model has them; by a scan the same fetches are watched under the partition's key,
and each append checks that key, as Kafka does. Measured is the append with all that follows: when
it completes none of the fetches, and when it completes 10, which then read and respond.
"""

from __future__ import annotations

from purgatory import DelayedOperationPurgatory
from purgatory.kafka import (
    DelayedFetch,
    FetchIsolation,
    FetchParams,
    PartitionFetch,
    RecordBatch,
    ReplicaManager,
    TopicPartition,
)
from purgatory.kafka.replication.delayed_fetch import FetchPartitionStatus
from tests.benchmarks.measurement import Figure, Size, in_turns, run_alone, say, seconds
from timer import ManualClock, SystemTimer

ROUNDS = 5
FETCHES = 10_000
BATCH_BYTES = 100
COMPLETED = 10
WAIT_MS = 3_600_000
TP = TopicPartition("topic", 0)


class ParkedFetch:
    """A broker that leads one partition, with fetches that wait on it.

    Args:
        fetches: how many.
        first_bytes: what the first of them waits for, beyond the log's end.
        by_scan: whether each append looks at all of them.
    """

    def __init__(self, fetches: int, first_bytes: int, by_scan: bool) -> None:
        clock = ManualClock(start_ms=0)
        self.timer = SystemTimer("Fetches", clock=clock)
        self.purgatories = [
            DelayedOperationPurgatory(name, timer=self.timer, reaper_enabled=False)
            for name in ("Produce", "Fetch", "DeleteRecords", "Scan")
        ]
        produces, waiting, deletions, self.scanned = self.purgatories
        self.manager = ReplicaManager(
            0,
            clock=clock,
            produce_purgatory=produces,
            fetch_purgatory=waiting,
            delete_records_purgatory=deletions,
        )
        self.manager.become_leader(TP, 1, (0,), (0,))
        self.by_scan = by_scan
        self.answered = 0
        self.append()  # the log's first batch
        for number in range(fetches):
            # Ten of them are filled by the same batch.
            behind = number // COMPLETED * BATCH_BYTES
            self._park(first_bytes + behind)

    def _park(self, min_bytes: int) -> None:
        params = FetchParams(-1, WAIT_MS, min_bytes, isolation=FetchIsolation.LOG_END)
        asked = {TP: PartitionFetch(1, 2**40)}
        if not self.by_scan:
            self.manager.fetch_records(params, asked, self._respond)
            return
        partition = self.manager.partition(TP)
        assert partition is not None
        place = FetchPartitionStatus(partition, asked[TP], params.isolation)
        self.scanned.try_complete_else_watch(
            DelayedFetch(params, params.isolation, self.manager, asked, [place], self._respond),
            [TP],
        )

    def _respond(self, _answers: object) -> None:
        self.answered += 1

    def append(self) -> None:
        """Append a batch, and wake whoever it concerns."""
        self.manager.append_records(0, 1, {TP: RecordBatch(0, 1, BATCH_BYTES)}, _ignore)
        if self.by_scan:
            self.scanned.check_and_complete(TP)

    def append_all(self, appends: int) -> None:
        for _ in range(appends):
            self.append()

    def close(self) -> None:
        for purgatory in self.purgatories:
            purgatory.close("leave")
        self.timer.close()


def _ignore(_answers: object) -> None:
    """Ignore the responses."""


def append_us(fetches: int, appends: int, completed: int, by_scan: bool) -> dict[str, float]:
    """Return microseconds per append, of which each completes so many."""
    parked = ParkedFetch(fetches, BATCH_BYTES if completed else 2**30, by_scan)
    try:
        # The first one after a new segment began, and that is once per segment, looks at everybody.
        parked.append_all(1)
        spent_s = seconds(lambda: parked.append_all(appends))
        assert parked.answered == (1 + appends) * completed
    finally:
        parked.close()
    return {"us": spent_s / appends * 1e6}


def measure(size: Size = Size.USUAL) -> list[Figure]:
    fetches = size.pick(100, FETCHES)
    figures = []
    for completed, target in ((0, 100), (COMPLETED, 50)):
        quick, slow = size.pick(5, 200), size.pick(5, 20)
        spent = in_turns(
            {
                "thresholds": lambda: append_us(fetches, quick, completed, False),  # noqa: B023
                "scan": lambda: append_us(fetches, slow, completed, True),  # noqa: B023
            },
            size.pick(1, ROUNDS),
        )
        by_thresholds, by_scan = spent["thresholds"]["us"], spent["scan"]["us"]
        what = f"append that completes {completed or 'none'} of {fetches:,} fetches"
        say(f"{what}: {by_thresholds:,.1f} us by thresholds, {by_scan:,.0f} us by a scan")
        figures += [
            Figure(f"{what}, by thresholds", by_thresholds, "us"),
            Figure(f"{what}, by a scan", by_scan, "us"),
            Figure(f"{what}, scan / thresholds", by_scan / by_thresholds, "x", target, "higher"),
        ]
    return figures


if __name__ == "__main__":
    run_alone(measure)
