"""Ctrl-C and SIGTERM while DuckDB computes: they end the job, and what it spilled is removed.

DuckDB turns what a handler raises into a RuntimeError, and drops it where it comes while DuckDB
itself imports a module: so it is raised again, once a second, until the block ends.

Ground rules: handlers run in the main thread, where the block is; the thread that calls for them
again ends with the block, and what it calls for after that does nothing.
"""

from __future__ import annotations

import _thread
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from purgatory.analysis.termination import is_free

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_AGAIN_S = 1.0


@contextmanager
def stop_signals() -> Iterator[None]:
    """Raise at the end of the block, at the latest, what a signal stands for.

    Raises:
        KeyboardInterrupt: Ctrl-C.
        SystemExit: SIGTERM, with 143.
    """
    came: list[BaseException] = []
    ended = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        if ended.is_set():
            return
        if not came:
            threading.Thread(target=again, args=(number,), daemon=True).start()
        is_ctrl_c = number == signal.SIGINT
        came.append(KeyboardInterrupt() if is_ctrl_c else SystemExit(128 + number))
        raise came[-1]

    def again(number: int) -> None:
        while not ended.wait(_AGAIN_S):
            _thread.interrupt_main(signal.Signals(number))

    replaced = {}
    if threading.current_thread() is threading.main_thread():
        ends = (signal.SIGINT, signal.SIGTERM)
        replaced = {number: signal.getsignal(number) for number in ends if is_free(number)}
    try:
        try:
            for number in replaced:
                signal.signal(number, stop)
            yield
        finally:
            ended.set()
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt | SystemExit):
            raise error.__cause__ from None
        raise
    finally:
        ended.set()  # once more, for a signal that came before the first
        for number, was in replaced.items():
            signal.signal(number, was)
    if came:
        raise came[0]
