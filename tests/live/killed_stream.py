"""`purgatory stream` as a process that is killed at a chosen point: by SIGKILL, its own.

    python -m tests.live.killed_stream KILL_AT ARGUMENT...

ARGUMENTs are those of the command. KILL_AT is `POINT:N`; the points, each when one of the queries
comes to it for the N-th time, are

    between    rows of a batch are in Parquet, and none of them is in the topic
    within     half of a batch's rows are in the topic

Neither batch is committed then, and the other query is killed wherever it is.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

from purgatory.cli.main import main
from purgatory.live.result_topic import ResultTopic

_write = ResultTopic.write


class KillPoint:
    """Where this process ends. The threads of both queries come by."""

    def __init__(self, text: str) -> None:
        self._point, _, number = text.partition(":")
        self._left = int(number)
        self._lock = threading.Lock()

    def is_at(self, point: str) -> bool:
        """Whether the process is to end here."""
        if point != self._point:
            return False
        with self._lock:
            self._left -= 1
            return self._left == 0

    def write(self, topic: ResultTopic, batch: int, rows: Sequence[Mapping[str, Any]]) -> int:
        """Write to the topic, or some of it, or nothing any more."""
        if rows and self.is_at("between"):
            _kill()
        if len(rows) > 1 and self.is_at("within"):
            _write(topic, batch, rows[: len(rows) // 2])
            _kill()
        return _write(topic, batch, rows)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(kill_at: str, arguments: Sequence[str]) -> int:
    """Run the command, and end where it is said."""
    kill_point = KillPoint(kill_at)

    def write(topic: ResultTopic, batch: int, rows: Sequence[Mapping[str, Any]]) -> int:
        return kill_point.write(topic, batch, rows)

    with patch.object(ResultTopic, "write", write):
        return main(["stream", *arguments])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
