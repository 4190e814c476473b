"""A process that ends Java after the program that started it, however that ended.

    python -I -S java_watch.py PROGRAM JAVA FOLDER ...

waits for the end of the process PROGRAM, gives the process JAVA, whose standard input has closed
then, a moment to end by itself, kills it, and removes the folders. Java alone would not do: what
it still computes, or collects garbage for, holds up its end for minutes.

Ground rules: no imports but a few of the standard library, since it starts beside each Java. Linux
only: processes are told apart by descriptors, never by numbers, which others may have by then.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from collections.abc import Sequence

_BY_ITSELF_MS = 1_500


def watch(program: int, java: int, folders: Sequence[str]) -> None:
    """Wait for the end of a program, and end its Java; returns at once when Java has ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        java_descriptor = os.pidfd_open(java)
    except ProcessLookupError:
        return
    try:
        program_descriptor = os.pidfd_open(program)
    except ProcessLookupError:
        pass
    else:
        if program_descriptor not in _ended((program_descriptor, java_descriptor)):
            return
    if not _ended((java_descriptor,), _BY_ITSELF_MS):
        signal.pidfd_send_signal(java_descriptor, signal.SIGKILL)
        _ended((java_descriptor,))
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _ended(descriptors: Sequence[int], timeout_ms: int | None = None) -> set[int]:
    """Which of some processes have ended, once one has."""
    waiting = select.poll()
    for descriptor in descriptors:
        waiting.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in waiting.poll(timeout_ms)}


if __name__ == "__main__":
    watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
