"""A small example of what may be interrupted: done carefully, and carelessly."""

from __future__ import annotations

import threading

from timer.locks import ScopedLock


class Account:
    """Two numbers that change together under a lock, and a call that is careful or careless."""

    def __init__(self) -> None:
        self.lock = ScopedLock(threading.Lock())
        self.plain_lock = threading.Lock()
        self.moves: list[int] = []

    def move_carefully(self) -> None:
        with self.lock:
            self.moves.append(1)

    def move_and_return(self) -> int:
        with self.lock:
            return len(self.moves)

    def move_and_fail(self) -> None:
        with self.lock:
            raise LookupError

    def move_carelessly(self) -> None:
        with self.plain_lock:
            self.moves.append(1)

    def move_in_two_steps(self) -> None:
        try:
            self.moves.append(1)
        finally:
            self.clean_up()

    def clean_up(self) -> None:
        self.moves.clear()
