"""Runs `group_worker` programs, and keeps their reports."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

_ROOT = Path(__file__).parents[3]
WAIT_S = 40.0
"""The longest time of anything that is to happen at all."""


class Worker:
    """One member of a group, in a process of its own.

    ``owned`` are the partitions it was given last; ``reads`` are (partition, offset) in the order
    in which it read them, with None wherever partitions were given. ``holdings`` are what it had
    from when on, by the clock that all processes have.
    """

    def __init__(self, run: GroupRun, client: str, *arguments: str) -> None:
        self.client = client
        self.owned: tuple[int, ...] | None = None
        self.assignments = 0
        self.reads: list[tuple[int, int] | None] = []
        self.errors: list[str] = []
        self.counts = True
        self.holdings: list[tuple[float, tuple[int, ...]]] = []
        self._run = run
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "tests.wire.cluster.group_worker",
                client,
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )
        self._listeners = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._listen_to_errors, daemon=True),
        ]
        for listener in self._listeners:
            listener.start()

    def signal(self, number: int) -> None:
        """Send a signal to the process; the end of a hold takes its partitions from the member."""
        if number in (signal.SIGTERM, signal.SIGKILL):
            self.holdings.append((time.monotonic(), ()))
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end, when it owns nothing; return its exit status."""
        status = self.process.wait(WAIT_S)
        for listener in self._listeners:
            listener.join(WAIT_S)
        with self._run.changed:
            self.counts = False
        return status

    def close(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # The last line of a killed process may be incomplete.
            if not line.endswith("\n"):
                continue
            kind, _, rest = line.strip().partition(" ")
            with self._run.changed:
                self._take(kind, rest)
                self._run.changed.notify_all()

    def _take(self, kind: str, rest: str) -> None:
        if kind == "revoked":
            self.owned = ()
            self.holdings.append((float(rest), ()))
        elif kind == "assigned":
            numbers, _, at_s = rest.partition(" ")
            self.owned = tuple(int(number) for number in numbers.split(",") if number)
            self.holdings.append((float(at_s), self.owned))
            self.assignments += 1
            self.reads.append(None)
        elif kind == "read":
            partition, offset, value = rest.split()
            self.reads.append((int(partition), int(offset)))
            self._run.read.add(value)
        else:
            self.errors.append(f"{kind} {rest}")

    def _listen_to_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line.rstrip())


class GroupRun:
    """The members of one group, over time."""

    def __init__(self, servers: str, group: str, topic: str, session_ms: int) -> None:
        self.changed = threading.Condition()
        self.workers: list[Worker] = []
        self.read: set[str] = set()
        self._arguments = (servers, group, topic, str(session_ms))

    def start(self, client: str, instance_id: str | None = None) -> Worker:
        """Start another member."""
        own = () if instance_id is None else (instance_id,)
        worker = Worker(self, client, *self._arguments, *own)
        self.workers.append(worker)
        return worker

    def wait_for(self, is_true: Callable[[], bool], what: str) -> None:
        """Wait until a condition on the members' reports holds."""
        with self.changed:
            if not self.changed.wait_for(is_true, WAIT_S):
                told = [
                    (worker.client, worker.counts, worker.owned, worker.errors[-5:])
                    for worker in self.workers
                ]
                raise AssertionError(f"not within {WAIT_S:g} s: {what}; {told}")

    def wait_for_shares(self, *members: Worker, partitions: int) -> None:
        """Wait until these members have all partitions between them, in equal shares."""
        share = partitions // len(members)

        def shared() -> bool:
            owned = [worker.owned or () for worker in members]
            return sorted(sum(owned, ())) == list(range(partitions)) and all(
                len(one) == share for one in owned
            )

        names = ", ".join(worker.client for worker in members)
        self.wait_for(shared, f"{names} have {share} partitions each")

    def gaps(self) -> list[str]:
        """Return where a member skipped an offset within partitions that it was given."""
        found = []
        for worker in self.workers:
            after: dict[int, int] = {}
            for entry in worker.reads:
                if entry is None:
                    after.clear()
                    continue
                partition, offset = entry
                if after.get(partition, offset) != offset:
                    found.append(f"{worker.client}: {partition}@{offset}, not {after[partition]}")
                after[partition] = offset + 1
        return found

    def doubles(self) -> list[str]:
        """Return where two members had a partition at the same time."""
        spans: dict[int, list[tuple[float, float, str]]] = {}
        for number, worker in enumerate(self.workers):
            ends = [*(at_s for at_s, _ in worker.holdings[1:]), time.monotonic()]
            for (at_s, owned), end_s in zip(worker.holdings, ends, strict=True):
                for partition in owned:
                    name = f"{worker.client} {number}"
                    spans.setdefault(partition, []).append((at_s, end_s, name))
        return [
            f"{partition}: {one} and {other}"
            for partition, those in spans.items()
            for one, other in pairwise(sorted(those))
            if one[2] != other[2] and other[0] < one[1]
        ]


@contextmanager
def group_run(servers: str, group: str, topic: str, session_ms: int) -> Iterator[GroupRun]:
    """A group without members; those that are left at the end are killed."""
    run = GroupRun(servers, group, topic, session_ms)
    try:
        yield run
    finally:
        for worker in run.workers:
            worker.close()
