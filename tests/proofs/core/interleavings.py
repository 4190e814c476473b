"""Try interleavings of the core's threads from the command line, or repeat one that failed.

    python -m tests.proofs.core.interleavings          all of two threads, one preemption
    ... --preemptions 3                                ... and with three
    ... --random 50000                                 any three calls, a random schedule each
    ... --seed 4711                                    the random one of this seed, again
    ... --program "on one key: event, cancel" --schedule "12>1 30>0"

With ``--native`` the core is the native one, whose threads may be switched only in the Python that
it calls. The output has the number of schedules, and those that fail, with as few preemptions as
possible.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from types import ModuleType

from tests.proofs.core.explorer import (
    all_schedules,
    every_schedule,
    random_schedule,
    run_program,
    shrunk,
)
from tests.proofs.core.fresh_core import load_core, load_native_core
from tests.proofs.core.scheduler import Fixed, Run

Tried = tuple[str, Run]
"""A program's name, and a run of it."""


def main() -> int:
    """Run the schedules that the command line asks for; the exit code is 1 if a schedule failed."""
    parser = _parser()
    arguments = parser.parse_args()
    core = load_native_core() if arguments.native else load_core()
    if arguments.schedule is not None and not core.is_program(arguments.program):
        parser.error(f"--schedule needs a --program, and {arguments.program!r} is none")
    if arguments.schedule is None and not _names(core, arguments.program):
        parser.error(f"no pair of calls and no written program begins with {arguments.program!r}")
    begin_s = time.perf_counter()
    counts: Counter[str] = Counter()
    failures = 0
    for name, run in _tried(core, arguments):
        counts[name.partition(":")[0]] += 1
        if arguments.seed is not None:
            print(f'--program "{name}" --schedule "{run.schedule}"')
        if arguments.schedule is not None and run.schedule != " ".join(arguments.schedule.split()):
            parser.error(f"{name} can't follow that schedule, but only {run.schedule!r}")
        if run.failure is not None:
            failures += 1
            print(told(core, name, run), flush=True)
    for state, count in counts.items():
        print(f"{count:>10,}  {state}")
    print(f"{counts.total():>10,}  schedules in {time.perf_counter() - begin_s:.0f} s")
    return 1 if failures else 0


def told(core: ModuleType, name: str, failing: Run) -> str:
    """Return a failure, and the command that repeats it."""
    run = shrunk(core.build(name), failing)
    command = f"python -m tests.proofs.core.interleavings{' --native' if core.is_native() else ''}"
    return f'{name}: {run.failure}\n  {command} --program "{name}" --schedule "{run.schedule}"'


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.core.interleavings")
    parser.add_argument("--native", action="store_true", help="the native core")
    parser.add_argument("--preemptions", type=_count, default=1, help="at most so many (1)")
    parser.add_argument("--random", type=_count, help="so many random schedules of three threads")
    parser.add_argument("--first-seed", type=_count, default=0, help="of the random ones (0)")
    parser.add_argument("--seed", type=_count, help="repeat the random schedule of this seed")
    parser.add_argument("--program", default="", help="one program, or all that begin so")
    parser.add_argument("--schedule", type=_schedule, help="the deviations of one schedule")
    return parser


def _count(text: str) -> int:
    """Return a number that is not below 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 0 or more")
    return int(text)


def _schedule(text: str) -> str:
    """Return a schedule that can be followed."""
    if not all(re.fullmatch(r"\d+>\d+", item) for item in text.split()):
        raise argparse.ArgumentTypeError(
            f"{text!r} is none: write places and threads, as in '12>1 30>0'"
        )
    return text


def _names(core: ModuleType, beginning: str) -> list[str]:
    """Return all programs of two threads that begin so."""
    written = [name for name, build in core.PROGRAMS.items() if len(build().threads) == 2]
    return [name for name in (*core.pairs(), *written) if name.startswith(beginning)]


def _tried(core: ModuleType, arguments: argparse.Namespace) -> Iterator[Tried]:
    name = arguments.program
    if arguments.schedule is not None:
        yield name, run_program(core.build(name), Fixed(arguments.schedule))
    elif arguments.seed is not None:
        yield random_schedule(core, arguments.seed)
    elif arguments.random is not None:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.random):
            yield random_schedule(core, seed)
    else:
        for program in _names(core, name):
            schedules = every_schedule if core.is_native() else all_schedules
            for run in schedules(core.build(program), arguments.preemptions):
                yield program, run


if __name__ == "__main__":
    sys.exit(main())
