"""Random statements against a real MariaDB.

    python -m tests.databases.cdc.statements.run --seed 7

The command prints each program that ends neither equal nor with a stop, with fewer statements if
that is quick, and the outcomes of the others.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.databases.cdc.statements.statement_run import (
    PROGRAMS_AT_ONCE,
    Outcome,
    Servers,
    Task,
    run_programs,
    running_servers,
    shrink,
)

_STEPS = (3, 8)


@dataclass
class Proof:
    """The outcomes of all programs of a seed."""

    seed: int
    outcomes: list[Outcome] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def statements(self) -> int:
        """The number of statements tried."""
        return sum(outcome.tried for outcome in self.outcomes)

    @property
    def refused(self) -> float:
        """The share of statements that the source refused."""
        return sum(outcome.refused for outcome in self.outcomes) / max(1, self.statements)

    def share(self, verdict: str) -> float:
        """The share of programs that ended so."""
        return sum(one.verdict == verdict for one in self.outcomes) / max(1, len(self.outcomes))

    def summary(self) -> str:
        """One line."""
        counts = Counter(outcome.verdict for outcome in self.outcomes)
        shown = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        return (
            f"seed {self.seed}: {self.statements} statements ({self.refused:.0%} refused by the "
            f"source) in {len(self.outcomes)} programs: {shown}"
        )


def prove(servers: Servers, seed: int, programs: int, *, shrunk: int = 3) -> Proof:
    """Run so many programs, each of 3 to 10 steps; print the failures.

    Args:
        shrunk: how many failures are made shorter.
    """
    proof = Proof(seed)
    for first in range(0, programs, PROGRAMS_AT_ONCE):
        # One batch is compared after each step, the next one only at its end.
        live = first // PROGRAMS_AT_ONCE % 2 == 0
        tasks = [
            Task(f"{seed}/{n}", _STEPS[0] + n * 7 % _STEPS[1], careful=n % 3 != 2)
            for n in range(first, min(first + PROGRAMS_AT_ONCE, programs))
        ]
        for outcome, shown in run_programs(servers, tasks, live=live):
            proof.outcomes.append(outcome)
            if outcome.failure:
                shrinks = len(proof.failures) < shrunk
                told = _told(servers, outcome, shown, live=live, shrinks=shrinks)
                proof.failures.append(told)
                print(told, flush=True)
    return proof


def _told(servers: Servers, outcome: Outcome, shown: str, *, live: bool, shrinks: bool) -> str:
    when = "after each step" if live else "at its end"
    told = f"program {outcome.program.name}, compared {when}: {outcome.failure}"
    shorter = shrink(servers, outcome, live=live) if shrinks else None
    if shorter is not None:
        return f"{told}\n fewer statements: {shorter[0].failure}\n{shorter[1]}"
    return f"{told}\n{shown}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the status is 1 if a program failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.databases.cdc.statements.run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=70)
    parser.add_argument("--shrunk", type=int, default=20, help="how many failures are made shorter")
    parser.add_argument("--fold-tables", action="store_true", help="lower_case_table_names=1")
    given = parser.parse_args(arguments)
    settings = ["--lower-case-table-names=1"] if given.fold_tables else []
    begun = time.monotonic()
    with running_servers(*settings) as servers:
        proof = prove(servers, given.seed, given.programs, shrunk=given.shrunk)
    stops = Counter(
        re.sub(r"\d+", "N", told)[:160]
        for outcome in proof.outcomes
        if not outcome.failure
        for told in list(outcome.told.values())[:1]
    )
    for told, count in stops.most_common():
        print(f"{count:5} {told}")
    print(f"{proof.summary()}; {time.monotonic() - begun:.0f} s")
    return 1 if proof.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
