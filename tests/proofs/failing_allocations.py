"""Makes a part of the table's calls, each allocation of which fails in turn; run by a test.

    python -m tests.proofs.failing_allocations SHARE

``_testcapi.set_nomemory`` has one allocation after another fail. Native code may go wrong in a
way that ends the process, hence a process of its own.
"""

from __future__ import annotations

import faulthandler
import sys
from importlib import import_module
from itertools import count
from typing import Any, NoReturn

import structlog
from structlog.typing import EventDict, WrappedLogger

from tests.proofs.calls import CALLS, COVER, STATES, Scene, calls_in
from tests.proofs.drawn import draw, failure

_testcapi: Any = import_module("_testcapi")

MOST_PLACES = 400


def _drop(logger: WrappedLogger, name: str, event: EventDict) -> NoReturn:
    raise structlog.DropEvent


def rows() -> list[str]:
    """Return the states with each of the calls that change something."""
    return [
        f"{name}: {call}"
        for name, state in COVER.items()
        for call in (["watch"] if state.place == "new" else calls_in(state))
        if not CALLS[call].reads
    ]


def make(row: str, number: int) -> bool:
    """Make the call, whose ``number``-th allocation fails; False if it has fewer."""
    state, _, call = row.partition(": ")
    scene = Scene(STATES[state], (call,))
    scene.may_be_mistaken = True
    scene.interrupts = 1
    failed = False
    _testcapi.set_nomemory(number, number + 1)
    try:
        scene.act(call)
    except MemoryError:
        failed = True
    except (RuntimeError, SystemError) as error:
        # CPython says so of a lock and of a frame for which there is no memory.
        if str(error) not in ("can't allocate lock", "error return without exception set"):
            raise
        failed = True
    finally:
        _testcapi.remove_mem_hooks()
    scene.finish()
    scene.assert_over()
    return failed or number < 25


def main(share: float) -> int:
    """Return how many calls had an allocation that failed."""
    structlog.configure(processors=[_drop])
    faulthandler.enable()
    tried = 0
    for row in draw(rows(), share, "allocations"):
        for number in count(1):
            try:
                if number > MOST_PLACES or not make(row, number):
                    break
            except Exception as error:
                what = f"{row}, allocation {number} fails: {error!r}"
                command = f"python -m {__spec__.name} {share}"
                print(failure("purgatory.core", what, command))
                raise
            tried += 1
    return tried


if __name__ == "__main__":
    print(main(float(sys.argv[1])))
