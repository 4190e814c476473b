"""Other ways to keep timeouts, for comparison: a heap with lazy deletion, asyncio, an SQL table.

All have the face of ``Rival`` and run in virtual time, so that only their work is measured. The
project's own timer is among them, as ``Wheel``.
"""

from __future__ import annotations

import asyncio
import heapq
import sqlite3
import tempfile
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from timer import InlineExecutor, ManualClock, SystemTimer, TimerTask


def nothing() -> None:
    """The callback of all timeouts."""


class Rival(ABC):
    """Keeps timeouts, each a callback to be called at a deadline unless cancelled before."""

    @abstractmethod
    def add(self, delay_ms: int) -> Any:
        """Add a timeout from the present time on, and return what ``cancel`` takes."""

    @abstractmethod
    def cancel(self, timeout: Any) -> None:
        """Cancel what ``add`` returned."""

    @abstractmethod
    def advance_to(self, now_ms: int) -> None:
        """Move the time, and run what is due."""

    @abstractmethod
    def close(self) -> None:
        """Free what it holds."""


class Wheel(Rival):
    """The project's timer on a manual clock; what is due runs at once, on the same thread."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timer = SystemTimer("rival", clock=self.clock, executor=InlineExecutor())

    def add(self, delay_ms: int) -> TimerTask:
        return self.timer.call_later(delay_ms, nothing)

    def cancel(self, timeout: TimerTask) -> None:
        timeout.cancel()

    def advance_to(self, now_ms: int) -> None:
        self.clock.advance_to(now_ms)
        self.timer.advance_clock(0)

    def close(self) -> None:
        self.timer.close()


class Heap(Rival):
    """A heap under a lock; a cancelled timeout is marked, and dropped when its deadline comes."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.timeouts: list[list[Any]] = []
        self.now_ms = 0
        self.added = 0

    def add(self, delay_ms: int) -> list[Any]:
        with self.lock:
            self.added += 1
            timeout = [self.now_ms + delay_ms, self.added, nothing]
            heapq.heappush(self.timeouts, timeout)
        return timeout

    def cancel(self, timeout: list[Any]) -> None:
        timeout[2] = None

    def advance_to(self, now_ms: int) -> None:
        self.now_ms = now_ms
        while self.timeouts and self.timeouts[0][0] <= now_ms:
            with self.lock:
                _, _, callback = heapq.heappop(self.timeouts)
            if callback is not None:
                callback()

    def close(self) -> None:
        self.timeouts.clear()


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with a time that is moved by hand."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


class Asyncio(Rival):
    """``loop.call_later``; one turn of the loop for each move of the time."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()

    def add(self, delay_ms: int) -> asyncio.TimerHandle:
        return self.loop.call_later(delay_ms / 1_000, nothing)

    def cancel(self, timeout: asyncio.TimerHandle) -> None:
        timeout.cancel()

    def advance_to(self, now_ms: int) -> None:
        self.loop.now_s = now_ms / 1_000
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def close(self) -> None:
        self.loop.close()


class SqlTable(Rival):
    """A table with an index on the deadline, looked at now and then; SQLite, in a file.

    The table is cheaper than a real one: its journal is a write-ahead log that is never forced to
    disk, and it is on the same machine.
    """

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="timeouts-")
        path = Path(self.folder.name) / "timeouts.sqlite"
        self.database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.database.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;"
            "CREATE TABLE timeouts (id INTEGER PRIMARY KEY, due_ms INTEGER NOT NULL);"
            "CREATE INDEX by_due ON timeouts (due_ms);"
        )
        self.now_ms = 0

    def add(self, delay_ms: int) -> int:
        added = self.database.execute(
            "INSERT INTO timeouts (due_ms) VALUES (?)", (self.now_ms + delay_ms,)
        )
        assert added.lastrowid is not None
        return added.lastrowid

    def cancel(self, timeout: int) -> None:
        self.database.execute("DELETE FROM timeouts WHERE id = ?", (timeout,))

    def advance_to(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.take_due(now_ms)

    def take_due(self, now_ms: int) -> list[int]:
        """Delete what is due, run it, and return the deadlines."""
        due = self.database.execute(
            "DELETE FROM timeouts WHERE due_ms <= ? RETURNING due_ms", (now_ms,)
        ).fetchall()
        for _ in due:
            nothing()
        return [due_ms for (due_ms,) in due]

    def close(self) -> None:
        self.database.close()
        self.folder.cleanup()
