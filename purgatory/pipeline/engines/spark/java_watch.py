"""A process that ends Java after the program that started it, however that ended.

    python -I -S java_watch.py PROGRAM JAVA FOLDER ...

waits for the end of the process PROGRAM, gives the process JAVA, whose standard input has closed
then, a moment to end by itself, kills it, and removes the folders. Java alone would not do: what
it still computes, or collects garbage for, holds up its end for minutes.

Ground rules: no imports but a few of the standard library, since it starts beside each Java. Linux
only: processes are identified by descriptors, never by numbers, which others may have by then.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

_BY_ITSELF_MS = 1_500


def watch(program: int, java: int, folders: Sequence[str]) -> None:
    """Wait for the end of a program, end its Java, and remove their folders."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    descriptor = _open(java)
    _wait(_open(program))
    if not _wait(descriptor, _BY_ITSELF_MS) and descriptor is not None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        _wait(descriptor)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _open(process: int) -> int | None:
    """A descriptor of a process; None if it has ended."""
    try:
        return os.pidfd_open(process)
    except ProcessLookupError:
        return None


def _wait(descriptor: int | None, timeout_ms: int | None = None) -> bool:
    """Wait for the end of a process; returns whether it has ended within the time."""
    if descriptor is None:
        return True
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(timeout_ms))


if __name__ == "__main__":
    watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
