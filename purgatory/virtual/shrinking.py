"""Shrinking of failed tests in worlds, by delta debugging (Zeller and Hildebrandt's ddmin).

It looks for the least that a failure needs, few faults and a simple network, when all tests have
run, and where pytest reports results, which with pytest-xdist is not where tests run.
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
from purgatory.virtual.seeded_tests import OutOfTimeError, Repeating

T = TypeVar("T")


def ever_smaller(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Iterator[Sequence[T]]:
    """Yield ever smaller parts of a list that still fail.

    The last is 1-minimal: without any single one of its items it does not fail. Whoever stops
    asking has the smallest part so far. What ``fails`` raises ends it. No part is asked about
    twice; n items take at most O(n²) questions, and O(log n) where one of them is to blame.

    Args:
        items: that fail together; each differs from the others.
        fails: whether a part fails, which keeps the order.
    """
    passed: set[tuple[T, ...]] = set()

    def fails_newly(part: tuple[T, ...]) -> bool:
        if part in passed:
            return False
        if fails(part):
            return True
        passed.add(part)
        return False

    kept, count = tuple(items), 2
    if kept and fails_newly(()):
        yield ()
        return
    while len(kept) > 1:
        pieces = _pieces(kept, count)
        rests = [_without(kept, one) for one in pieces] if count > 2 else []
        found = next((part for part in [*pieces, *rests] if fails_newly(part)), None)
        if found is not None:
            count = 2 if found in pieces else count - 1
            kept = found
            yield kept
        elif count == len(kept):
            return
        else:
            count = min(2 * count, len(kept))


def _pieces(items: tuple[T, ...], count: int) -> list[tuple[T, ...]]:
    """So many pieces, none of them empty, whose lengths differ by one at most."""
    ends = [len(items) * number // count for number in range(count + 1)]
    return [items[begin:end] for begin, end in pairwise(ends)]


def _without(items: tuple[T, ...], piece: tuple[T, ...]) -> tuple[T, ...]:
    left_out = set(piece)
    return tuple(one for one in items if one not in left_out)


Attempt = Callable[[RepeatedTest], WorldFailure | None]
"""Runs a test, and returns how it failed; None: it did not."""


class NotReproducedError(WorldError):
    """A failure did not come again when its test was repeated unchanged; says what came."""


def smaller_failures(
    found: WorldFailure, attempt: Attempt, repetitions: int = 1
) -> Iterator[WorldFailure]:
    """Yield a failure as it comes again, and then ever smaller ones of its kind.

    Whoever stops asking has the smallest so far. What ``attempt`` raises ends it.

    Args:
        found: the failure.
        attempt: runs a test.
        repetitions: how often the test is repeated unchanged before it counts as not reproduced.

    Raises:
        NotReproducedError: it did not come again.
    """
    best = _repeated(found, attempt, repetitions)
    yield best

    def fails(test: RepeatedTest) -> bool:
        nonlocal best
        failure = attempt(test)
        if failure is None or failure.kind != found.kind:
            return False
        best = failure
        return True

    def fails_with(kept: Sequence[int]) -> bool:
        left_out = {*found.test.without, *range(found.planned)} - set(kept)
        return fails(replace(found.test, without=sorted(left_out)))

    faults: Sequence[int] = sorted({*range(found.planned)} - set(found.test.without))
    # What had not begun by then is out of the way, lest it begin in a run that goes on for longer.
    if len(found.begun) < len(faults) and fails_with(found.begun):
        faults = found.begun
        yield best
    for _ in ever_smaller(faults, fails_with):
        yield best
    if not found.test.plain_network and fails(replace(best.test, plain_network=True)):
        yield best


def _repeated(found: WorldFailure, attempt: Attempt, repetitions: int) -> WorldFailure:
    for _ in range(repetitions):
        failure = attempt(found.test)
        if failure is not None and failure.kind == found.kind:
            return failure
    if failure is None:
        raise NotReproducedError("the test passed")
    raise NotReproducedError(f"another failure came: {failure.kind}, and not {found.kind}")


REPORTED = "world_failure"
"""The attribute of a report that has the failure, as a text, so that it gets from a worker here."""

SECTION = "virtual world, shrunk"
_NONE_LIES_ANYWHERE: Final = sys.version_info < (3, 12)
"""Whether each process orders sets that `None` is a part of again, whatever `PYTHONHASHSEED` is."""

_REPETITIONS: Final = 3 if _NONE_LIES_ANYWHERE else 1


def shrink_failures(config: pytest.Config, terminal: Any, limit_s: float) -> None:
    """Make the first failure of each test smaller, and put what is left of it into its report.

    Args:
        config: of pytest.
        terminal: pytest's reporter, which has the reports.
        limit_s: how long that may take in all.
    """
    reports = list(_first_of_each(terminal.stats.get("failed", ())))
    if not reports:
        return
    with suppress(KeyboardInterrupt), TemporaryDirectory() as scratch:
        options = options_of(config, Path(scratch))
        repeating = Repeating(options, Path(config.invocation_params.dir), limit_s)
        for report in reports:
            terminal.ensure_newline()
            terminal.write_line(f"shrinking {report.nodeid}, for at most {repeating.left_s:.3g} s")
            found = WorldFailure.from_text(getattr(report, REPORTED))
            told, goes_on = _shrunk(found, repeating, limit_s)
            report.sections.append((SECTION, told))
            if not goes_on:
                return


def _shrunk(found: WorldFailure, repeating: Repeating, limit_s: float) -> tuple[str, bool]:
    """What is told of a failure that was made as small as it could be; whether to go on."""
    best: WorldFailure | None = None
    end, before = "", repeating.attempts
    try:
        for failure in smaller_failures(found, repeating.attempt, _REPETITIONS):
            best = failure
    except NotReproducedError as error:
        return _not_reproduced(error, repeating.said), True
    except OutOfTimeError:
        end = f", then the time was up: --virtual-shrink-s {5 * limit_s:g} looks for longer"
    except KeyboardInterrupt:
        end = ", then it was interrupted"
    except OSError as error:
        end = f", then no process could be started: {error}"
    count = repeating.attempts - before
    attempts = f"{count} attempt{'' if count == 1 else 's'}{end}"
    if best is None:
        return f"not made smaller ({attempts})", not end
    return f"{_summary(found, best)} ({attempts})\n{best.told}", not end


def options_of(config: pytest.Config, scratch: Path) -> list[str]:
    """Return what an attempt is given of what this pytest was: where it finds tests and plugins.

    What this pytest writes, such as reports and a cache, the attempts write into ``scratch``.
    """
    option = config.option
    words = ["--virtual-no-shrink", "--rootdir", str(config.rootpath), "-q", "--tb=short"]
    words += ["-m", "", "-k", ""]  # the test is named, and not to be left out by the ini file
    if config.inipath is not None:
        words += ["-c", str(config.inipath)]
    for plugin in option.plugins:
        words += ["-p", plugin]
    for setting in option.override_ini or ():
        words += ["-o", setting]
    if option.confcutdir:
        words += ["--confcutdir", option.confcutdir]
    words.append(f"--import-mode={option.importmode}")
    if config.pluginmanager.hasplugin("cacheprovider"):
        words += ["-o", f"cache_dir={scratch}"]
    if getattr(option, "numprocesses", None) is not None:
        words += ["-n", "0"]
    if getattr(option, "xmlpath", None):
        words += ["--junit-xml", str(scratch / "junit.xml")]
    if hasattr(option, "no_cov"):
        words.append("--no-cov")
    return words


def _first_of_each(reports: Sequence[Any]) -> Iterator[Any]:
    """The first failure in a world of each test, whatever its seed."""
    seen = set()
    for report in reports:
        test = re.sub(r"seed-?\d+", "", report.nodeid)
        if getattr(report, REPORTED, None) and test not in seen:
            seen.add(test)
            yield report


def _summary(found: WorldFailure, best: WorldFailure) -> str:
    """What of the failure was made smaller."""
    planned, left = (one.planned - len(one.test.without) for one in (found, best))
    became_plain = best.test.plain_network and not found.test.plain_network
    if left == planned and not became_plain:
        return "no smaller failure was found"
    causes = [f"with {left or 'none'} of {planned} faults"] if planned else []
    if became_plain:
        causes.append("on a plain network")
    return f"it fails {', '.join(causes)}, too"


def _not_reproduced(error: Exception, said: str) -> str:
    advice = [] if os.environ.get(HASH_SEED, "").isdecimal() else [f"set {HASH_SEED}"]
    if _NONE_LIES_ANYWHERE:
        advice.append("before Python 3.12, have addresses be the same by setarch -R")
    order = f" ({'; '.join(advice)})" if advice else ""
    return (
        f"not reproduced: repeated in a process of its own, {error}.\n"
        f"So something decides that is not the seed's: the order of sets{order}, what other tests "
        "left behind in this process or in files, or chance or a clock that is not the world's.\n"
        f"The attempt printed at its end:\n{said}"
    )
