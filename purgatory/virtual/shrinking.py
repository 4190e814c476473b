"""Shrinking of failed tests in worlds, by delta debugging (Zeller and Hildebrandt's ddmin).

It searches for a minimal failure, with few faults and a simple network, after all tests have run,
in the process that reports results (with pytest-xdist, that is not the one that runs tests).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import pytest

from purgatory.virtual.errors import WorldError
from purgatory.virtual.failure_report import HASH_SEED, RepeatedTest, WorldFailure
from purgatory.virtual.seeded_tests import Repeater, TimeLimitError

T = TypeVar("T")


def ddmin(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Iterator[Sequence[T]]:
    """Yield ever smaller parts of a list that still fail.

    The last is 1-minimal: without any single one of its items it does not fail. Exceptions of
    ``fails`` propagate. No part is tested twice; n items take at most O(n²) tests, and O(log n) if
    a single one causes the failure.

    Args:
        items: fail together; each is unique.
        fails: whether a part, in this order, fails.
    """
    passing: set[tuple[T, ...]] = set()

    def is_new_failure(part: tuple[T, ...]) -> bool:
        if part in passing:
            return False
        if fails(part):
            return True
        passing.add(part)
        return False

    failing, count = tuple(items), 2
    if failing and is_new_failure(()):
        yield ()
        return
    while len(failing) > 1:
        pieces = _chunks(failing, count)
        complements = [_without(failing, chunk) for chunk in pieces] if count > 2 else []
        smaller = next((part for part in [*pieces, *complements] if is_new_failure(part)), None)
        if smaller is not None:
            count = 2 if smaller in pieces else count - 1
            failing = smaller
            yield failing
        elif count == len(failing):
            return
        else:
            count = min(2 * count, len(failing))


def _chunks(items: tuple[T, ...], count: int) -> list[tuple[T, ...]]:
    """Split into `count` nonempty pieces whose lengths differ by at most one."""
    ends = [len(items) * number // count for number in range(count + 1)]
    return [items[begin:end] for begin, end in pairwise(ends)]


def _without(items: tuple[T, ...], chunk: tuple[T, ...]) -> tuple[T, ...]:
    excluded = set(chunk)
    return tuple(item for item in items if item not in excluded)


Attempt = Callable[[RepeatedTest], WorldFailure | None]
"""Runs a test, and returns its failure; None: it passed."""


class NotReproducedError(WorldError):
    """The unchanged test did not reproduce its failure; the message has the actual result."""


def shrink_failure(
    original: WorldFailure, attempt: Attempt, repetitions: int = 1
) -> Iterator[WorldFailure]:
    """Yield a reproduced failure, and then ever smaller ones of its kind.

    Exceptions of ``attempt`` propagate.

    Args:
        original: the failure.
        attempt: runs a test.
        repetitions: how often the test is repeated unchanged before it counts as not reproduced.

    Raises:
        NotReproducedError: the failure was not reproduced.
    """
    smallest = _reproduce(original, attempt, repetitions)
    yield smallest

    def fails(test: RepeatedTest) -> bool:
        nonlocal smallest
        failure = attempt(test)
        if failure is None or failure.kind != original.kind:
            return False
        smallest = failure
        return True

    def fails_with_faults(faults: Sequence[int]) -> bool:
        excluded = {*original.test.without, *range(original.planned_faults)} - set(faults)
        return fails(replace(original.test, without=sorted(excluded)))

    faults: Sequence[int] = sorted({*range(original.planned_faults)} - set(original.test.without))
    # Exclude faults that had not begun, lest they begin in a longer run.
    if len(original.begun_faults) < len(faults) and fails_with_faults(original.begun_faults):
        faults = original.begun_faults
        yield smallest
    for _ in ddmin(faults, fails_with_faults):
        yield smallest
    if not original.test.plain_network and fails(replace(smallest.test, plain_network=True)):
        yield smallest


def _reproduce(original: WorldFailure, attempt: Attempt, repetitions: int) -> WorldFailure:
    for _ in range(repetitions):
        failure = attempt(original.test)
        if failure is not None and failure.kind == original.kind:
            return failure
    if failure is None:
        raise NotReproducedError("the test passed")
    raise NotReproducedError(f"another failure came: {failure.kind}, and not {original.kind}")


REPORTED = "world_failure"
"""The attribute of a report with the failure as JSON, which passes it on from xdist's workers."""

SECTION = "virtual world, shrunk"
_HAS_RANDOM_NONE_HASH: Final = sys.version_info < (3, 12)
"""Whether the hash of `None`, and so the order of sets, varies with the process."""

_REPETITIONS: Final = 3 if _HAS_RANDOM_NONE_HASH else 1


def shrink_failures(config: pytest.Config, terminal: Any, limit_s: float) -> None:
    """Shrink the first failure of each test, and add the result to its report.

    Args:
        terminal: pytest's terminal reporter.
        limit_s: the time limit for all tests together.
    """
    reports = list(_first_failures(terminal.stats.get("failed", ())))
    if not reports:
        return
    with suppress(KeyboardInterrupt), TemporaryDirectory() as scratch:
        options = attempt_options(config, Path(scratch))
        repeater = Repeater(options, Path(config.invocation_params.dir), limit_s)
        for report in reports:
            terminal.ensure_newline()
            terminal.write_line(f"shrinking {report.nodeid}, for at most {repeater.left_s:.3g} s")
            original = WorldFailure.from_json(getattr(report, REPORTED))
            text, has_time = _shrink(original, repeater, limit_s)
            report.sections.append((SECTION, text))
            if not has_time:
                return


def _shrink(original: WorldFailure, repeater: Repeater, limit_s: float) -> tuple[str, bool]:
    """Return the report of a shrunk failure, and whether time is left."""
    smallest: WorldFailure | None = None
    end, before = "", repeater.attempts
    try:
        for failure in shrink_failure(original, repeater.attempt, _REPETITIONS):
            smallest = failure
    except NotReproducedError as error:
        return _not_reproduced(error, repeater.output), True
    except TimeLimitError:
        end = f", then the time was up: --virtual-shrink-s {5 * limit_s:g} looks for longer"
    except KeyboardInterrupt:
        end = ", then it was interrupted"
    except OSError as error:
        end = f", then no process could be started: {error}"
    count = repeater.attempts - before
    attempts = f"{count} attempt{'' if count == 1 else 's'}{end}"
    if smallest is None:
        return f"not made smaller ({attempts})", not end
    return f"{_summary(original, smallest)} ({attempts})\n{smallest.report}", not end


def attempt_options(config: pytest.Config, scratch: Path) -> list[str]:
    """Return the options of an attempt, with which it finds the same tests and plugins.

    Attempts write their reports and cache into ``scratch``.
    """
    option = config.option
    options = ["--virtual-no-shrink", "--rootdir", str(config.rootpath), "-q", "--tb=short"]
    options += ["-m", "", "-k", ""]  # the test is named; the ini file must not deselect it
    if config.inipath is not None:
        options += ["-c", str(config.inipath)]
    for plugin in option.plugins:
        options += ["-p", plugin]
    for setting in option.override_ini or ():
        options += ["-o", setting]
    if option.confcutdir:
        options += ["--confcutdir", option.confcutdir]
    options.append(f"--import-mode={option.importmode}")
    if config.pluginmanager.hasplugin("cacheprovider"):
        options += ["-o", f"cache_dir={scratch}"]
    if getattr(option, "numprocesses", None) is not None:
        options += ["-n", "0"]
    if getattr(option, "xmlpath", None):
        options += ["--junit-xml", str(scratch / "junit.xml")]
    if hasattr(option, "no_cov"):
        options.append("--no-cov")
    return options


def _first_failures(reports: Sequence[Any]) -> Iterator[Any]:
    """The first failure of each test in a world, whatever its seed."""
    reported = set()
    for report in reports:
        test = re.sub(r"seed-?\d+", "", report.nodeid)
        if getattr(report, REPORTED, None) and test not in reported:
            reported.add(test)
            yield report


def _summary(original: WorldFailure, smallest: WorldFailure) -> str:
    """Describe how a failure was shrunk."""
    planned, remaining = (
        failure.planned_faults - len(failure.test.without) for failure in (original, smallest)
    )
    became_plain = smallest.test.plain_network and not original.test.plain_network
    if remaining == planned and not became_plain:
        return "no smaller failure was found"
    causes = [f"with {remaining or 'none'} of {planned} faults"] if planned else []
    if became_plain:
        causes.append("on a plain network")
    return f"it fails {', '.join(causes)}, too"


def _not_reproduced(error: Exception, output: str) -> str:
    advice = [] if os.environ.get(HASH_SEED, "").isdecimal() else [f"set {HASH_SEED}"]
    if _HAS_RANDOM_NONE_HASH:
        advice.append("before Python 3.12, have addresses be the same by setarch -R")
    order = f" ({'; '.join(advice)})" if advice else ""
    return (
        f"not reproduced: repeated in a process of its own, {error}.\n"
        f"So something decides that is not the seed's: the order of sets{order}, what other tests "
        "left behind in this process or in files, or chance or a clock that is not the world's.\n"
        f"The attempt printed at its end:\n{output}"
    )
