"""A program that imports the packages while its time is frozen."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
from freezegun import freeze_time
with freeze_time("2020-01-02"):
    from purgatory import DelayedOperation, DelayedOperationPurgatory, Outcome
    from timer import SystemTimer

    class Operation(DelayedOperation):
        def try_complete(self):
            return False

    operation = Operation(10)
    timer = SystemTimer("frozen")
    purgatory = DelayedOperationPurgatory("frozen", timer=timer)
    purgatory.try_complete_else_watch(operation, ["key"])
    assert operation.wait(30) is Outcome.EXPIRED
    purgatory.close(timeout=30)
    timer.close()
"""


def test_operation_expires_after_an_import_in_frozen_time() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=60)
