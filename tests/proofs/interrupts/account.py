"""A small example of what may be interrupted: done carefully, and carelessly."""

from __future__ import annotations

import threading


class Account:
    """Two numbers that change together under a lock, and a call that is careful or careless."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.moves: list[int] = []

    def move_carefully(self) -> None:
        with self.lock:
            self.moves.append(1)

    def move_and_fail(self) -> None:
        with self.lock:
            raise LookupError

    def move_carelessly(self) -> None:
        self.lock.acquire()
        try:
            self.moves.append(1)
        finally:
            self.lock.release()

    def move_in_two_steps(self) -> None:
        try:
            self.moves.append(1)
        finally:
            self.clean_up()

    def clean_up(self) -> None:
        self.moves.clear()
