"""Repeats a test of a world in a process of its own, as the command that is printed does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from purgatory.virtual.errors import WorldError
from purgatory.virtual.repeated_test import HASH_SEED, RepeatedTest
from purgatory.virtual.world_failure import WorldFailure

_HASH_SEED_IF_NONE: Final = "0"
_LONGEST_OVER_FIRST: Final = 5
"""How many times as long as the first attempt another may take: what hangs is no such failure."""
_LEAST_LIMIT_S: Final = 10.0
_SHOWN_CHARACTERS: Final = 1_000


class OutOfTimeError(WorldError):
    """There is no time for another attempt."""


class Repeating:
    """Repeats tests until a time; each is given to pytest in a process of its own.

    Args:
        options: what pytest is given beside the test.
        folder: where it is started.
        limit_s: how long all attempts may take.
    """

    def __init__(self, options: Sequence[str], folder: Path, limit_s: float) -> None:
        self._options = options
        self._folder = folder
        self._until_s = time.monotonic() + limit_s
        self._longest_s: float | None = None
        self.attempts = 0
        self.said = ""
        """The end of what pytest printed at the last attempt."""

    @property
    def left_s(self) -> float:
        """How much time is left."""
        return max(0.0, self._until_s - time.monotonic())

    def attempt(self, test: RepeatedTest) -> WorldFailure | None:
        """Run a test once; return how it failed, None where it did not or was not done in time.

        Raises:
            OutOfTimeError: there is no time left.
            OSError: no process can be started.
        """
        began_s, left_s = time.monotonic(), self.left_s
        if not left_s:
            raise OutOfTimeError("there is no time for another attempt")
        limit_s = left_s if self._longest_s is None else min(left_s, self._longest_s)
        self.attempts += 1
        with TemporaryDirectory() as folder:
            failure = self._run(test, Path(folder), limit_s)
        if failure is None and not self.left_s:
            raise OutOfTimeError("the time was over before the test was")
        if self._longest_s is None:
            taken_s = time.monotonic() - began_s
            self._longest_s = max(_LEAST_LIMIT_S, _LONGEST_OVER_FIRST * taken_s)
        return failure

    def _run(self, test: RepeatedTest, folder: Path, limit_s: float) -> WorldFailure | None:
        """Run a test, which writes how it failed into a file: what it prints is for people."""
        told, printed = folder / "failure", folder / "printed"
        words = [*self._options, "--virtual-attempt", str(told), *test.words]
        with printed.open("wb") as out:
            try:
                subprocess.run(
                    [sys.executable, "-m", "pytest", *words],
                    cwd=self._folder,
                    env=attempt_environment(os.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    timeout=limit_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return None
        self.said = printed.read_text(errors="replace")[-_SHOWN_CHARACTERS:].strip()
        try:
            return WorldFailure.from_text(told.read_text())
        except (FileNotFoundError, ValueError):
            return None


def attempt_environment(own: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of an attempt: one in which sets of strings are always ordered alike,
    and in which is imported from where it is here."""
    given = own.get(HASH_SEED, "")
    return {
        **own,
        HASH_SEED: given if given.isdecimal() else _HASH_SEED_IF_NONE,
        "PYTHONPATH": os.pathsep.join(one for one in sys.path if one),
    }
