"""A finalizer in the middle of a call that reads: work comes and goes until a table is made anew.

The table of the pending operations has had many more than it has, so it becomes smaller, and as
many are pending as before: CPython sees no change, and its iterators may read beyond the new one.
Each call that reads is tried, with the finalizer at each of its places, in a process of its own,
which reading beyond may end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from purgatory import DelayedOperationPurgatory, describe
from tests.proofs.calls import CALLS
from tests.proofs.core.test_finalizers import Collector
from tests.unit.core.probe import Probe, Setting

ROOT = Path(__file__).parents[3]
MANY = 200
"""The entries that leave a table of 512 places; two thirds are used before it is made anew."""

LOOKS: dict[str, Callable[[DelayedOperationPurgatory], Any]] = {
    "num_delayed": lambda purgatory: purgatory.num_delayed,
    "watched": lambda purgatory: purgatory.watched,
    "watched_keys": lambda purgatory: purgatory.watched_keys,
    "max_pending": lambda purgatory: purgatory.max_pending,
    "is_closed": lambda purgatory: purgatory.is_closed,
    "owns_timer": lambda purgatory: purgatory.owns_timer,
    "counters": lambda purgatory: purgatory.counters,
    "oldest_pending_ns": lambda purgatory: purgatory.oldest_pending_ns,
    "keys": lambda purgatory: purgatory.keys(),
    "value": lambda purgatory: purgatory.value("n"),
    "pending_ends": lambda purgatory: purgatory.pending_ends(MANY),
    "waiting_on": lambda purgatory: purgatory.waiting_on("k", MANY),
    "waiting_for_locks": lambda purgatory: purgatory.waiting_for_locks(),
    "recent_faults": lambda purgatory: purgatory.recent_faults(),
    "describe": lambda purgatory: describe([purgatory]),
}


class Worn(Setting):
    """A purgatory with a few operations, and a table for many."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [self.new() for _ in range(9)]
        many = [self.new() for _ in range(MANY)]
        self.kept.append(self.new())
        for one in many:
            one.cancel()

    def new(self) -> Probe:
        return self.submit(Probe(), "k")

    def wear(self) -> None:
        """End one and submit another, and many that end at once between the two."""
        self.kept.pop().cancel()
        for _ in range(MANY):
            self.new().cancel()
        self.kept.append(self.new())


def look_everywhere(name: str, step: int) -> None:
    """Make the call with the finalizer at each ``step``-th of its places, one after the other."""
    number = count = 1
    while number <= count:
        print(f"{name}, at place {number}", flush=True)
        worn = Worn()
        before = [*worn.kept]
        collector = Collector(worn.wear, number)
        with collector.tracing():
            found = LOOKS[name](worn.purgatory)
        if name == "pending_ends":
            assert {*map(id, [*found[0], *found[1]])} <= {*map(id, [*before, *worn.kept])}
        worn.purgatory._check()
        count = collector.count
        number += step


def test_table_of_looks_has_every_call_that_reads() -> None:
    reading = {name for name, call in CALLS.items() if call.reads}
    of_purgatories = {name for name in reading if hasattr(DelayedOperationPurgatory, name)}
    assert of_purgatories - LOOKS.keys() == set()


def test_table_made_anew_in_the_middle_is_read_right() -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", __name__],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert ended.returncode == 0, (ended.stdout[-40:], ended.stderr[-4_000:])


if __name__ == "__main__":
    for look in LOOKS:
        look_everywhere(look, step=31 if look == "describe" else 1)
