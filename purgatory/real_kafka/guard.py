"""A process that ends a real Kafka's brokers after the program that started them, however it ended.

    python -I -S guard.py PROGRAM FOLDER

leads a process group, which the brokers join. When the process PROGRAM is gone, or standard input
says that it is done, it kills the group, and removes the folder. A signal that a terminal sends to
the program's group, as for Ctrl-C, doesn't reach them: the program ends them in its order.

Ground rules: no imports but a few of the standard library, since it starts beside each cluster.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time

_LOOKS_S = 0.5
"""How often it looks whether the program lives: its child may hold standard input open."""

_ENDING_S = 0.3


def guard(program: int, folder: str) -> None:
    """Wait for the end of a program, end the group's processes, and remove the folder."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.getppid() == program:
        ready, _, _ = select.select([0], [], [], _LOOKS_S)
        if ready and not os.read(0, 1):
            break
    group = os.getpgrp()
    if os.fork():
        signal.pause()  # until the group is killed
    os.setsid()
    os.killpg(group, signal.SIGKILL)
    time.sleep(_ENDING_S)  # what is killed may still write
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2])
