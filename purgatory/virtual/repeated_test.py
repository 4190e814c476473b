"""What repeats a test in a world: the words for pytest, and the line for a terminal."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from purgatory.virtual.fault_numbers import text_of

HASH_SEED = "PYTHONHASHSEED"


@dataclass(frozen=True)
class RepeatedTest:
    """A test with what decides all that happens in its world.

    Args:
        node_id: of the test, as pytest takes it.
        seed: of its world.
        without: the faults that are left out.
        plain_network: whether the network stays simple.
    """

    node_id: str
    seed: int
    without: Sequence[int] = ()
    plain_network: bool = False

    @property
    def words(self) -> list[str]:
        """What pytest is given."""
        words = [self.node_id, "--virtual-seed", str(self.seed)]
        if self.without:
            words += ["--virtual-without", text_of(self.without)]
        if self.plain_network:
            words.append("--virtual-plain-network")
        return words

    @property
    def command(self) -> str:
        """What is typed to repeat it, with the hash seed of this process, where that is set."""
        return f"{before_command()}pytest {shlex.join(self.words)}"


def before_command() -> str:
    """Return what a command begins with so that Python orders sets of strings as it did here."""
    hash_seed = os.environ.get(HASH_SEED, "")
    return f"{HASH_SEED}={hash_seed} " if hash_seed.isdecimal() else ""
