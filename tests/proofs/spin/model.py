"""Checks the model of the protocol by Spin: ``make model``.

Each configuration has to be without error, and Spin has to find one in each that breaks a rule.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.proofs.spin.configurations import BROKEN, RIGHT, Configuration

FOLDER = Path(__file__).parent
MODEL = FOLDER / "protocol.pml"

_COMPILE = {
    "safety": ["-DSAFETY"],
    "progress": ["-DNP"],
    "liveness": ["-DNFAIR=3"],  # as many processes as spin says when it is too few
}
_RUN = {"safety": [], "progress": ["-l"], "liveness": ["-a", "-f"]}
_DEEPEST = "-m200000"

_ERRORS = (
    ("two outcomes", r"assertion violated \(op\[\w+\]\.outcome==0\)"),
    ("called twice", r"assertion violated \(op\[\w+\]\.calls==0\)"),
    ("expired though it held", r"assertion violated .*held_at_expiry"),
    ("callbacks overlap", r"assertion violated .*inside"),
    ("something runs after close", r"assertion violated +!\(returned\)"),
    ("a completion is lost", r"assertion violated +!\(\(\(values&"),
    ("an expiry is lost", r"assertion violated .*verdict==0"),
    ("left on a list", r"assertion violated .*on_lists==0"),
    ("left on the timer", r"assertion violated .*in_home"),
    ("left pending", r"assertion violated .*(pending|closed)"),
    ("left incomplete", r"assertion violated .*(completing|is_done)"),
    ("another assertion", r"assertion violated"),
    ("deadlock", r"pan:\d+: invalid end state"),
    ("goes round for ever", r"pan:\d+: non-progress cycle"),
    ("never completes", r"pan:\d+: acceptance cycle"),
)


class Answer(NamedTuple):
    """The result of Spin."""

    error: str
    """The violated property; empty if all hold."""
    states: int
    seconds: float


def missing_tools() -> str:
    """Say what is to be installed, or nothing."""
    missing = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    if not missing:
        return ""
    return (
        f"the model can't be checked without {' and '.join(missing)}; on Debian and Ubuntu: "
        "apt-get install spin gcc libc6-dev"
    )


def ask(configuration: Configuration) -> Answer:
    """Check one configuration.

    Raises:
        RuntimeError: Spin or the compiler failed, or the search was not complete.
    """
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        for path in FOLDER.glob("*.pml"):
            shutil.copy(path, folder)
        macros = [f"-D{macro}" for macro in configuration.macros]
        _run(["spin", *macros, "-a", MODEL.name], folder)
        kind = _COMPILE[configuration.search]
        # Optimizing takes the compiler ten seconds, more than a short search gains by it.
        speed = "-O0" if configuration.is_quick else "-O1"
        _run(["gcc", speed, "-w", "-DCOLLAPSE", *kind, "-o", "pan", "pan.c"], folder)
        said = _run(["./pan", *_RUN[configuration.search], _DEEPEST], folder)
    return read_answer(configuration, said, time.monotonic() - begin_s)


def _run(command: list[str], folder: str) -> str:
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def read_answer(configuration: Configuration, said: str, seconds: float) -> Answer:
    """Read what a search said.

    Raises:
        RuntimeError: it was not complete.
    """
    stored = re.search(r"(\d+) states, stored", said)
    errors = re.search(r"errors: (\d+)", said)
    if stored is None or errors is None or "max search depth too small" in said:
        raise RuntimeError(f"{configuration.name}: the search is not complete:\n{said}")
    error = ""
    if errors[1] != "0":
        [error, *_] = [name for name, pattern in _ERRORS if re.search(pattern, said)] or [said]
    return Answer(error, int(stored[1]), seconds)


def is_as_it_should_be(configuration: Configuration, answer: Answer) -> bool:
    """Whether what is right holds, or what is broken was found."""
    return bool(answer.error) == bool(configuration.broken)


def line_of(configuration: Configuration, answer: Answer) -> str:
    """The printed line."""
    found = answer.error or "holds"
    if not is_as_it_should_be(configuration, answer):
        found = f"WRONG: {answer.error or 'nothing was found'}"
    return f"{configuration.name:<58} {answer.states:>11,} {answer.seconds:>6.1f} s  {found}"


def main() -> int:
    """Check everything, and print a line for each."""
    missing = missing_tools()
    if missing:
        print(f"model: {missing}", file=sys.stderr)
        return 1
    print(f"{'configuration':<58} {'states':>11} {'time':>8}  found")
    wrong = 0
    for configuration in sorted([*RIGHT, *BROKEN], key=lambda one: not one.is_quick):
        answer = ask(configuration)
        wrong += not is_as_it_should_be(configuration, answer)
        print(line_of(configuration, answer), flush=True)
    if wrong:
        print(f"model: {wrong} are not as they should be", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
