"""`purgatory stream` as a process that is killed at a chosen point: by SIGKILL, its own.

    python -m tests.spark.pipeline.stream.killed_stream N ARGUMENT...

ARGUMENTs are those of the command. The process is killed when the N-th results are in Parquet, and
half of them in the topic: the batch is not committed then.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

from purgatory.cli.main import main
from purgatory.stream.sinks import TopicSink

_write = TopicSink.write


class KillPoint:
    """The point at which this process is killed."""

    def __init__(self, number: int) -> None:
        self._left = number

    def _is_here(self) -> bool:
        self._left -= 1
        return self._left == 0

    def write(self, topic: TopicSink, batch: int, rows: Sequence[Mapping[str, Any]]) -> int:
        """Write to the topic, or some of it and nothing any more."""
        if len(rows) > 1 and self._is_here():
            _write(topic, batch, rows[: len(rows) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return _write(topic, batch, rows)


def run(number: int, arguments: Sequence[str]) -> int:
    """Run the command, and end at the kill point."""
    kill_point = KillPoint(number)

    def write(topic: TopicSink, batch: int, rows: Sequence[Mapping[str, Any]]) -> int:
        return kill_point.write(topic, batch, rows)

    with patch.object(TopicSink, "write", write):
        return main(["stream", *arguments])


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), sys.argv[2:]))
