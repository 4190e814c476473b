"""`purgatory cluster` as a process of its own, for clients of any kind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STOPS_WITHIN_S = 30


@contextmanager
def running_cluster(log: Path, *options: str) -> Iterator[str]:
    """Run a cluster on free ports while the block runs; yield its bootstrap servers.

    Args:
        log: a file for what it logs.
        options: of the command, beside the ports.

    Raises:
        RuntimeError: it does not start.
    """
    command = [sys.executable, "-m", "purgatory", "cluster", "--port", "0", "--control-port", "0"]
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            name, _, servers = process.stdout.readline().strip().partition("=")
            if name != "bootstrap.servers":
                raise RuntimeError(log.read_text(encoding="utf-8"))
            yield servers
        finally:
            process.terminate()
            try:
                process.wait(_STOPS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
